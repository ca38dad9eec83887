// One workgroup per token of x [tokens, n].
//   add:  residual += x (when ADD_RESIDUAL), and what follows reads the sum
//   rms:  y = x / sqrt(mean(x^2) + eps) * w
//   layer: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b
#include "lane.wgsl"
#include "reduce.wgsl"

override ADD_RESIDUAL: bool = false;
override LAYER: bool = false;
override HAS_BIAS: bool = false;

struct Params {
    n: u32,
    tokens: u32,
    eps: f32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> residual: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn input(at: u32) -> f32 {
    if ADD_RESIDUAL {
        return residual[at];
    }
    return x[at];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn norm(builtins: Builtins) {
    let lane = lane_of(builtins);
    let start = builtins.workgroup.x * params.n;
    let n = f32(params.n);
    var sum = 0.0;
    for (var i = lane.index; i < params.n; i += WORKGROUP_SIZE) {
        if ADD_RESIDUAL {
            residual[start + i] += x[start + i];
        }
        sum += input(start + i);
    }
    var mean = 0.0;
    if LAYER {
        mean = workgroup_sum(sum, lane) / n;
    }
    // The variance from centred values: the difference of two sums loses everything when |mean| is large.
    var squares = 0.0;
    for (var i = lane.index; i < params.n; i += WORKGROUP_SIZE) {
        let centred = input(start + i) - mean;
        squares += centred * centred;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / n + params.eps);
    for (var i = lane.index; i < params.n; i += WORKGROUP_SIZE) {
        var value = (input(start + i) - mean) * scale * weight[i];
        if HAS_BIAS {
            value += bias[i];
        }
        y[start + i] = value;
    }
}
