// RMS norm of the heads (or groups) of a recurrent mixer's outputs, with a gate per element, in
// place:
//   x = x / sqrt(mean(x^2) + eps) * w * silu(gate)
//   x = x * silu(gate), then x / sqrt(mean(x^2) + eps) * w, when GATE_FIRST
// x is [tokens, heads * dim]. w is [dim], or [heads * dim] when WEIGHT_PER_HEAD. Gates start at
// `gate_at` in rows of `gate`. One workgroup per head and token: grid (heads; tokens).
#include "lane.wgsl"
#include "reduce.wgsl"
#include "params.wgsl"

override GATE_FIRST: bool = false;
override WEIGHT_PER_HEAD: bool = false;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;

fn silu(v: f32) -> f32 {
    return v / (1.0 + exp(-v));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_norm(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let head = builtins.workgroup.x * params.dim;
    let start = builtins.workgroup.y * params.pitch + head;
    let gates = builtins.workgroup.y * params.gate_pitch + params.gate_at + head;
    var squares = 0.0;
    for (var i = lane.index; i < params.dim; i += WORKGROUP_SIZE) {
        var value = x[start + i];
        if GATE_FIRST {
            value *= silu(gate[gates + i]);
            x[start + i] = value;
        }
        squares += value * value;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(params.dim) + params.eps);
    for (var i = lane.index; i < params.dim; i += WORKGROUP_SIZE) {
        var at = i;
        if WEIGHT_PER_HEAD {
            at += head;
        }
        var value = x[start + i] * scale * weight[at];
        if !GATE_FIRST {
            value *= silu(gate[gates + i]);
        }
        x[start + i] = value;
    }
}
