// The weights are d * (2 scale + 1) / 8 * magnitude * sign with a scale for each half of a chunk.
// The Rust file of the same name describes the layout.
#include "code_book.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;
#include "super_block.wgsl"

fn codes8(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<u32> {
    let block = super_block(row, chunk, chunks, 12u).at;
    let c = chunk % 8u;
    let low = (weight_main[row * chunks + chunk] >> (i * 8u)) & 255u;
    let high = (weight_aux[block + 8u + c / 4u] >> (c % 4u * 8u + 2u * i)) & 3u;
    return signed_point8(low | (high << 8u), weight_aux[block + c] >> (i * 8u));
}

fn scales_of(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<f32> {
    let block = super_block(row, chunk, chunks, 12u);
    let half = chunk % 8u * 2u + i / 2u;
    let scale = f32(2u * ((weight_aux[block.at + 10u + half / 8u] >> (half % 8u * 4u)) & 15u) + 1u);
    return vec2<f32>(block.d * 0.125, scale);
}
