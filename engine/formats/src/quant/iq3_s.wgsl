// The weights are d * (2 scale + 1) * magnitude * sign. The Rust file of the same name has the
// layout.
#include "code_book.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;
#include "super_block.wgsl"

fn codes8(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<u32> {
    let block = super_block(row, chunk, chunks, 11u).at;
    let c = chunk % 8u;
    let points = weight_main[(row * chunks + chunk) * 2u + i / 2u] >> (i % 2u * 16u);
    let high = weight_aux[block + c / 4u] >> (c % 4u * 8u + 2u * i);
    let first = (points & 255u) | ((high & 1u) << 8u);
    let second = ((points >> 8u) & 255u) | ((high & 2u) << 7u);
    return signed_points4(first, second, weight_aux[block + 2u + c] >> (i * 8u));
}

fn scales_of(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<f32> {
    let block = super_block(row, chunk, chunks, 11u);
    return vec2<f32>(block.d * f32(2u * ((weight_aux[block.at + 10u] >> (chunk % 8u * 4u)) & 15u) + 1u), 1.0);
}
