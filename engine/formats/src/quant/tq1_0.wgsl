// The weights are scale * (digit - 1). The Rust file of the same name describes the layout.
#include "ternary.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;
#include "super_block.wgsl"

// Digit n of each of four bytes. The byte times 3^n modulo 256, times three, carries the digit into
// the next byte.
fn digits(word: u32, n: u32) -> u32 {
    let power = select((0x1b090301u >> (n * 8u)) & 255u, 81u, n == 4u);
    // Bytes 0 and 2, and bytes 1 and 3, with room for carries.
    let even = ((word & 0x00ff00ffu) * power) & 0x00ff00ffu;
    let odd = (((word >> 8u) & 0x00ff00ffu) * power) & 0x00ff00ffu;
    return (((even * 3u) >> 8u) & 0x00030003u) | ((odd * 3u) & 0x03000300u);
}

fn scale_of(row: u32, chunk: u32, chunks: u32) -> f32 {
    return super_block(row, chunk, chunks, 5u).d;
}

// Columns 4 k .. + 4 of a chunk: digit k of the chunk's word, or a digit of the super-block's
// words.
fn ternary4(row: u32, chunk: u32, k: u32, chunks: u32) -> u32 {
    if k < 5u {
        return digits(weight_main[row * chunks + chunk], k);
    }
    let at = chunk % 8u * 3u + k - 5u;
    return digits(weight_aux[super_block(row, chunk, chunks, 5u).at + at / 5u], at % 5u);
}

fn ternary8(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<u32> {
    return vec2<u32>(ternary4(row, chunk, 2u * i, chunks), ternary4(row, chunk, 2u * i + 1u, chunks));
}
