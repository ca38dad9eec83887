// The weights are scale * (code - 1). The Rust file of the same name describes the layout.
#include "ternary_pairs.wgsl"

@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn scale_of(row: u32, chunk: u32, chunks: u32) -> f32 {
    let blocks = chunks / 2u;
    let scales = unpack2x16float(weight_aux[row * ((blocks + 1u) / 2u) + chunk / 4u]);
    return select(scales.x, scales.y, chunk / 2u % 2u == 1u);
}
