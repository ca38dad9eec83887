// Common part of the matrix products, without the activations.
//   y[t, y_offset + r] = W[r] . x[t] (+ bias[bias_offset + r])
//   RELU:       max(0, sum)
//   ACCUMULATE: y += sum
#include "params.wgsl"

override HAS_BIAS: bool = false;
override RELU: bool = false;
override ACCUMULATE: bool = false;

@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Writes a sum, unless its row or token is past the end.
fn finish(token: u32, row: u32, sum: f32) {
    if token >= params.tokens || row >= params.rows {
        return;
    }
    var value = sum;
    if HAS_BIAS {
        value += bias[params.bias_offset + row];
    }
    if RELU {
        value = max(value, 0.0);
    }
    let to = token * params.y_pitch + params.y_offset + row;
    if ACCUMULATE {
        value += y[to];
    }
    y[to] = value;
}
