// One workgroup per row of x [rows, cols]:
//   add:   x += DELTA_SCALE delta (when ADD_DELTA); the norm then reads the sum
//   rms:   y = x / sqrt(mean(x^2) + eps) * w
//   layer: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b
// x and y may be the same buffer. Rows begin at multiples of four elements. Weights and biases are
// padded to whole vectors.
#include "lane.wgsl"
#include "reduce.wgsl"
#include "params.wgsl"

override ADD_DELTA: bool = false;
override DELTA_SCALE: f32 = 1.0;
override LAYER: bool = false;
override HAS_BIAS: bool = false;

@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> delta: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn norm(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let row = builtins.workgroup.y * params.stride + builtins.workgroup.x;
    // The condition is the same for the whole workgroup.
    if row >= params.rows {
        return;
    }
    let start = row * (params.pitch / 4u);
    let n = f32(params.cols);
    let vectors = (params.cols + 3u) / 4u;
    // A lane's first vector stays in registers. Its weights are loaded before the sums, so that the
    // loads overlap with the barriers. Most rows have at most one vector per lane.
    var first = vec4<f32>();
    var first_weight = vec4<f32>();
    var first_bias = vec4<f32>();
    if lane.index < vectors {
        first = added(start, lane.index);
        first_weight = weight[lane.index];
        if HAS_BIAS {
            first_bias = bias[lane.index];
        }
    }
    var sums = summand(first);
    for (var i = lane.index + WORKGROUP_SIZE; i < vectors; i += WORKGROUP_SIZE) {
        sums += summand(added(start, i));
    }
    var sum = workgroup_sum((sums.x + sums.y) + (sums.z + sums.w), lane);
    var mean = 0.0;
    if LAYER {
        // The variance uses centred values. A difference of two sums would lose all precision if
        // |mean| is large.
        mean = sum / n;
        let centred = columns_inside(lane.index, first - mean);
        var squares = centred * centred;
        for (var i = lane.index + WORKGROUP_SIZE; i < vectors; i += WORKGROUP_SIZE) {
            let centred = columns_inside(i, x[start + i] - mean);
            squares += centred * centred;
        }
        sum = workgroup_sum((squares.x + squares.y) + (squares.z + squares.w), lane);
    }
    let scale = inverseSqrt(sum / n + params.eps);
    if lane.index < vectors {
        let value = (first - mean) * scale * first_weight + first_bias;
        y[start + lane.index] = columns_inside(lane.index, value);
    }
    for (var i = lane.index + WORKGROUP_SIZE; i < vectors; i += WORKGROUP_SIZE) {
        var value = (x[start + i] - mean) * scale * weight[i];
        if HAS_BIAS {
            value += bias[i];
        }
        y[start + i] = columns_inside(i, value);
    }
}

// Four columns of x, after the addition. Columns past the end of the row are zero.
fn added(start: u32, i: u32) -> vec4<f32> {
    var value = x[start + i];
    if ADD_DELTA {
        value += columns_inside(i, DELTA_SCALE * delta[start + i]);
        x[start + i] = value;
    }
    return columns_inside(i, value);
}

// What the first sum adds for four columns.
fn summand(values: vec4<f32>) -> vec4<f32> {
    if LAYER {
        return values;
    }
    return values * values;
}

// Four columns from 4 * i on. Columns past the end of the row are zero.
fn columns_inside(i: u32, values: vec4<f32>) -> vec4<f32> {
    let columns = vec4<u32>(4u * i) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(), values, columns < vec4<u32>(params.cols));
}
