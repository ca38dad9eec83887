// out[t, c] = sum over s of partials[s, t, c] (+ bias[c]), for the partial sums of `sparse_down`.
// One invocation per element, in a two-dimensional grid.
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 128u;
override HAS_BIAS: bool = false;

@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sum_splits(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let token = i / params.cols;
    if token >= params.tokens {
        return;
    }
    let col = i % params.cols;
    let first = token * params.partial_pitch + col;
    let step = params.tokens * params.partial_pitch;
    // Four loads are in flight at a time.
    var sums = vec4<f32>();
    var s = 0u;
    for (; s + 4u <= params.splits; s += 4u) {
        let at = first + s * step;
        sums += vec4<f32>(partials[at], partials[at + step], partials[at + 2u * step], partials[at + 3u * step]);
    }
    var sum = (sums.x + sums.y) + (sums.z + sums.w);
    for (; s < params.splits; s += 1u) {
        sum += partials[first + s * step];
    }
    if HAS_BIAS {
        sum += bias[col];
    }
    out[token * params.pitch + col] = sum;
}
