// The short causal convolution before delta nets and Mamba-2, per channel:
//   y[t, c] = f(bias[c] + sum_j weight[j, c] * x[t - taps + 1 + j, c]), f is SiLU when ACTIVATE
// When GATED (the mixer of LFM2), a row of x is [inputs | input gates | output gates]. The
// convolution's inputs are then the products of the first two, and y is multiplied by the last.
// Inputs before the first token are in the state [taps - 1, channels], the newest last. `save`
// advances the state past these tokens. Grid: (channels in groups of WORKGROUP_SIZE; runs of `span`
// tokens). Only a grid of one run can save the state: the run of all tokens, or an extra run of no
// tokens (`span` = 0).
#include "lane.wgsl"
#include "params.wgsl"

override ACTIVATE: bool = true;
override HAS_BIAS: bool = false;
override GATED: bool = false;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Input `at` of the state followed by the tokens.
fn input(at: u32, channel: u32) -> f32 {
    let history = params.taps - 1u;
    if at < history {
        return state[at * params.channels + channel];
    }
    let place = (params.row + at - history) * params.x_pitch + channel;
    if GATED {
        return x[place] * x[place + params.channels];
    }
    return x[place];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn short_conv(@builtin(global_invocation_id) id: vec3<u32>) {
    let channel = id.x;
    if channel >= params.channels {
        return;
    }
    let begin = id.y * params.span;
    let end = min(begin + params.span, params.tokens);
    for (var token = begin; token < end; token += 1u) {
        var sum = 0.0;
        if HAS_BIAS {
            sum = bias[channel];
        }
        for (var tap = 0u; tap < params.taps; tap += 1u) {
            sum += weight[tap * params.channels + channel] * input(token + tap, channel);
        }
        if ACTIVATE {
            sum = sum / (1.0 + exp(-sum));
        }
        if GATED {
            sum *= x[(params.row + token) * params.x_pitch + 2u * params.channels + channel];
        }
        y[(params.row + token) * params.y_pitch + channel] = sum;
    }
    if params.save != 0u {
        // An input moves to an earlier place, so it is read before its own place is overwritten.
        for (var i = 0u; i + 1u < params.taps; i += 1u) {
            state[i * params.channels + channel] = input(params.tokens + i, channel);
        }
    }
}
