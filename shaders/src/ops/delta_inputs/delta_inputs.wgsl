// Prepares the inputs of the gated delta rule in place. Queries and keys of each head are
// normalised to length 1, and queries are divided by sqrt(k_dim):
//   q <- q / sqrt(|q|^2 + 1e-6) / sqrt(k_dim),  k <- k / sqrt(|k|^2 + 1e-6)
// Decay and rate of each value head, in rows of `rates` at `decay_at` and `rate_at`:
//   decay <- e^(a * ln(1 + e^(decay + dt_bias))),  rate <- 1 / (1 + e^-rate)
// qkv is [tokens, queries | keys | values]. Grid: (2 * k_heads + 1; tokens), one workgroup per
// query and key head, and the last one for the rates.
#include "lane.wgsl"
#include "reduce.wgsl"
#include "softplus.wgsl"
#include "params.wgsl"

const LENGTH_EPS: f32 = 1e-6;

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(1) var<storage, read_write> rates: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> dt_bias: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn delta_inputs(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let slot = builtins.workgroup.x;
    let token = builtins.workgroup.y;
    // The condition is the same for the whole workgroup.
    if slot == 2u * params.k_heads {
        let row = token * params.rates_pitch;
        for (var head = lane.index; head < params.v_heads; head += WORKGROUP_SIZE) {
            let decay = row + params.decay_at + head;
            rates[decay] = exp(a[head] * softplus(rates[decay] + dt_bias[head]));
            let rate = row + params.rate_at + head;
            rates[rate] = 1.0 / (1.0 + exp(-rates[rate]));
        }
        return;
    }
    let start = token * params.qkv_pitch + slot * params.k_dim;
    var squares = 0.0;
    for (var i = lane.index; i < params.k_dim; i += WORKGROUP_SIZE) {
        squares += qkv[start + i] * qkv[start + i];
    }
    var scale = inverseSqrt(workgroup_sum(squares, lane) + LENGTH_EPS);
    if slot < params.k_heads {
        scale *= inverseSqrt(f32(params.k_dim));
    }
    for (var i = lane.index; i < params.k_dim; i += WORKGROUP_SIZE) {
        qkv[start + i] *= scale;
    }
}
