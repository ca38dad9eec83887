// The weights are d * (2 scale + 1) / 8 * magnitude * sign. The Rust file of the same name has the
// layout.
#include "code_book.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;
#include "super_block.wgsl"

fn codes8(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<u32> {
    let signs = weight_aux[super_block(row, chunk, chunks, 8u).at + chunk % 8u];
    let point = (weight_main[row * chunks + chunk] >> (i * 8u)) & 255u;
    return signed_point8(point, even_signs(signs >> (7u * i)));
}

fn scales_of(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<f32> {
    let block = super_block(row, chunk, chunks, 8u);
    return vec2<f32>(block.d * 0.125 * f32(2u * (weight_aux[block.at + chunk % 8u] >> 28u) + 1u), 1.0);
}
