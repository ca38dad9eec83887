// One workgroup per row of x [rows, cols]:
//   add:   x += DELTA_SCALE delta (when ADD_DELTA), and what follows reads the sum
//   rms:   y = x / sqrt(mean(x^2) + eps) * w
//   layer: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b
// x and y may be one buffer.
#include "lane.wgsl"
#include "reduce.wgsl"

override ADD_DELTA: bool = false;
override DELTA_SCALE: f32 = 1.0;
override LAYER: bool = false;
override HAS_BIAS: bool = false;

struct Params {
    cols: u32,
    // Elements from one row to the next.
    pitch: u32,
    rows: u32,
    // Workgroups in one row of the grid.
    stride: u32,
    eps: f32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> delta: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn norm(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let row = builtins.workgroup.y * params.stride + builtins.workgroup.x;
    // The same for the whole workgroup.
    if row >= params.rows {
        return;
    }
    let start = row * params.pitch;
    let n = f32(params.cols);
    var sum = 0.0;
    for (var i = lane.index; i < params.cols; i += WORKGROUP_SIZE) {
        if ADD_DELTA {
            x[start + i] += DELTA_SCALE * delta[start + i];
        }
        sum += x[start + i];
    }
    var mean = 0.0;
    if LAYER {
        mean = workgroup_sum(sum, lane) / n;
    }
    // The variance from centred values: the difference of two sums loses everything when |mean| is large.
    var squares = 0.0;
    for (var i = lane.index; i < params.cols; i += WORKGROUP_SIZE) {
        let centred = x[start + i] - mean;
        squares += centred * centred;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / n + params.eps);
    for (var i = lane.index; i < params.cols; i += WORKGROUP_SIZE) {
        var value = (x[start + i] - mean) * scale * weight[i];
        if HAS_BIAS {
            value += bias[i];
        }
        y[start + i] = value;
    }
}
