// The weights are factor * (code - 1) with a factor for each row. The Rust file of the same name
// describes the layout.
#include "ternary_pairs.wgsl"

@group(0) @binding(1) var<storage, read> weight_aux: array<f32>;

fn scale_of(row: u32, _chunk: u32, _chunks: u32) -> f32 {
    return weight_aux[row];
}
