// Which neurons to compute, or which fired: bit i % 32 of mask[t, i / 32] tells whether scores[t,
// i] passes the TEST:
//   0 score >= threshold, for a predictor's scores
//   1 |score| > threshold, for hidden activations (threshold 0: the neurons that fired)
// NaN never passes. Workgroup (block, t) of the grid tests 32 * WORKGROUP_SIZE neurons, one word
// per invocation.
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 128u;
override TEST: u32 = 0u;

@group(0) @binding(0) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> mask: array<u32>;

fn passes(score: f32) -> bool {
    if TEST == 1u {
        return abs(score) > params.threshold;
    }
    return score >= params.threshold;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn active_mask(@builtin(global_invocation_id) id: vec3<u32>) {
    let word = id.x;
    let token = id.y;
    let words = (params.neurons + 31u) / 32u;
    if word >= words {
        return;
    }
    var bits = 0u;
    for (var i = 0u; i < 32u && word * 32u + i < params.neurons; i += 4u) {
        let four = scores[(token * params.pitch + word * 32u + i) / 4u];
        for (var j = 0u; j < 4u; j += 1u) {
            bits |= u32(passes(four[j])) << (i + j);
        }
    }
    // Padding of the last row is not a neuron.
    if word + 1u == words && params.neurons % 32u != 0u {
        bits &= (1u << (params.neurons % 32u)) - 1u;
    }
    mask[token * words + word] = bits;
}
