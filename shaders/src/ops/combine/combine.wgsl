// out[t] = sum over s of router_weights[t, s] * y[t * used + s], for experts with a place below
// `resident`. With SHARED, plus shared[t], which GATED multiplies by sigmoid(gate[t]). With `add`,
// plus the earlier out[t] of the other experts. Rows of y, shared and out are `pitch` apart, rows
// of gate `gate_pitch`. One invocation per element, in a two-dimensional grid.
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 128u;
override SHARED: bool = false;
override GATED: bool = true;

@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> router_weights: array<f32>;
@group(0) @binding(2) var<storage, read> places: array<u32>;
@group(0) @binding(3) var<storage, read> shared_y: array<f32>;
@group(0) @binding(4) var<storage, read> gate: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn combine(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let token = i / params.cols;
    if token >= params.tokens {
        return;
    }
    let col = i % params.cols;
    var sum = 0.0;
    if params.add != 0u {
        sum = out[token * params.pitch + col];
    }
    for (var s = token * params.used; s < (token + 1u) * params.used; s += 1u) {
        // The outputs of other experts are not written.
        if places[s] < params.resident {
            sum += router_weights[s] * y[s * params.pitch + col];
        }
    }
    if SHARED {
        var open = 1.0;
        if GATED {
            open = 1.0 / (1.0 + exp(-gate[token * params.gate_pitch]));
        }
        sum += open * shared_y[token * params.pitch + col];
    }
    out[token * params.pitch + col] = sum;
}
