// Common part of the matrix products, without the activations.
//   y[t, y_offset + r] = W[r] . x[t] (+ bias[bias_offset + r])
//   RELU:       max(0, sum)
//   ACCUMULATE: y += sum
override HAS_BIAS: bool = false;
override RELU: bool = false;
override ACCUMULATE: bool = false;

struct Params {
    rows: u32,
    chunks: u32,
    tokens: u32,
    x_pitch: u32,
    y_pitch: u32,
    y_offset: u32,
    bias_offset: u32,
    stride: u32,
}

var<immediate> params: Params;
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
