// The weights are d * (scale - 32) * (code - 4) with a scale for each half of a chunk. The Rust
// file of the same name describes the layout.
#include "pairs.wgsl"
#include "super_block.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}

// The scales of both halves of a chunk of a super-block.
fn half_scales(aux: u32, chunk: u32) -> vec2<i32> {
    let c = chunk % 8u;
    let low = weight_aux[aux + 8u + c / 4u] >> ((c % 4u) * 8u);
    let high = weight_aux[aux + 10u] >> (c * 4u);
    return vec2<i32>(
        i32((low & 15u) | ((high & 3u) << 4u)) - 32,
        i32(((low >> 4u) & 15u) | (((high >> 2u) & 3u) << 4u)) - 32,
    );
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let pairs = weight_main[row * chunks + chunk];
    let block = super_block(row, chunk, chunks, 11u);
    let third = weight_aux[block.at + chunk % 8u] >> (i * 4u);
    let scales = vec2<f32>(half_scales(block.at, chunk));
    // (code - 4) / 8 = float - 1.5
    return Weights8(
        three_bit_floats(pairs.x, i, third) * scales.x - 1.5 * scales.x,
        three_bit_floats(pairs.y, i, third >> 16u) * scales.y - 1.5 * scales.y,
        block.d * 8.0,
        0.0,
    );
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let pairs = weight_main[row * chunks + chunk];
    let block = super_block(row, chunk, chunks, 11u);
    let third = weight_aux[block.at + chunk % 8u] >> (i * 4u);
    // The product puts one of four adjacent bits into each byte.
    let low = spread_pairs(pairs.x, i) | ((((third & 15u) * 0x204081u) & 0x01010101u) << 2u);
    let high = spread_pairs(pairs.y, i) | (((((third >> 16u) & 15u) * 0x204081u) & 0x01010101u) << 2u);
    let scales = half_scales(block.at, chunk);
    let sum = (dot4I8Packed(low, x.low) - 4 * x.low_sum) * scales.x
        + (dot4I8Packed(high, x.high) - 4 * x.high_sum) * scales.y;
    return block.d * f32(sum);
}
