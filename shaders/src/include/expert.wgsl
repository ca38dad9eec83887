// Common part of products with the chosen experts. s is a pair of a token and one of its experts.
//   y[s, y_offset + r] = W[ids[s], r] . x[s / pairs_per_row] (+ bias[ids[s], r])
// The bound weights are those of experts first_expert .. + experts, one after the other. The bound
// biases start with expert first_bias. Pairs of other experts are not written.
#include "params.wgsl"

override HAS_BIAS: bool = false;

@group(0) @binding(3) var<storage, read> bias: array<f32>;

// Writes a sum, unless its row is past the end. `expert` counts from the first bound expert.
fn finish(pair: u32, expert: u32, row: u32, sum: f32) {
    if row >= params.rows {
        return;
    }
    var value = sum;
    if HAS_BIAS {
        value += bias[(expert + params.first_expert - params.first_bias) * params.rows + row];
    }
    y[pair * params.y_pitch + params.y_offset + row] = value;
}
