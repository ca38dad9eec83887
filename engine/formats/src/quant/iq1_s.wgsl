// The weights are d * (2 scale + 1) * (value + shift). The Rust file of the same name has the
// layout.
#include "code_book_iq1.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;
#include "super_block.wgsl"

fn point8(row: u32, chunk: u32, i: u32, chunks: u32) -> Point8 {
    let block = super_block(row, chunk, chunks, 4u);
    let c = chunk % 8u;
    let both = weight_aux[block.at + c / 2u] >> (c % 2u * 16u);
    let low = (weight_main[row * chunks + chunk] >> (i * 8u)) & 255u;
    return Point8(
        low | (((both >> (3u * i)) & 7u) << 8u),
        block.d * f32(2u * ((both >> 12u) & 7u) + 1u),
        1.0,
        select(0.125, -0.125, (both & 0x8000u) != 0u),
    );
}
