// Which neurons to compute, or which fired: bit i % 32 of mask[t, i / 32] says whether scores[t, i] passes, by TEST:
//   0 score >= threshold, a predictor's scores
//   1 |f(score)| > threshold, the gate's outputs (0: whatever fires; more: an approximation)
//   2 |score| > threshold, hidden activations (0: those that fired)
// NaN never passes. Workgroup (block, t) of the grid looks at 32 * WORKGROUP_SIZE neurons, a word per invocation, and writes
// how many of them passed to counts[t, block]; `active_list` must run with the same WORKGROUP_SIZE.
#include "activation.wgsl"
#include "lane.wgsl"
#include "reduce.wgsl"

override TEST: u32 = 0u;

struct Params {
    neurons: u32,
    // Elements from one token's scores to the next's; a multiple of 4.
    pitch: u32,
    threshold: f32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> mask: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;

fn passes(score: f32) -> bool {
    switch TEST {
        case 1u: {
            return abs(activate(score)) > params.threshold;
        }
        case 2u: {
            return abs(score) > params.threshold;
        }
        default: {
            return score >= params.threshold;
        }
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn active_mask(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let token = builtins.workgroup.y;
    let words = (params.neurons + 31u) / 32u;
    let blocks = (words + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    let word = builtins.workgroup.x * WORKGROUP_SIZE + lane.index;
    var bits = 0u;
    if word < words {
        for (var i = 0u; i < 32u && word * 32u + i < params.neurons; i += 4u) {
            let four = scores[(token * params.pitch + word * 32u + i) / 4u];
            for (var j = 0u; j < 4u; j += 1u) {
                bits |= u32(passes(four[j])) << (i + j);
            }
        }
        // Padding of the last row is no neuron.
        if word + 1u == words && params.neurons % 32u != 0u {
            bits &= (1u << (params.neurons % 32u)) - 1u;
        }
        mask[token * words + word] = bits;
    }
    // Exact: far below 2^24.
    let passed = workgroup_sum(f32(countOneBits(bits)), lane);
    if lane.index == 0u {
        counts[token * blocks + builtins.workgroup.x] = u32(passed);
    }
}
