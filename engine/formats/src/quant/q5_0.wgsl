// The weights are scale * (code - 16). The Rust file of the same name describes the layout.
#include "nibbles.wgsl"
#include "fifth_bits.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

// Word of fifth bits, and scale.
struct Chunk {
    fifth: u32,
    scale: f32,
}

fn chunk_of(row: u32, chunk: u32, chunks: u32) -> Chunk {
    let first = row * (chunks + (chunks + 1u) / 2u);
    let scales = unpack2x16float(weight_aux[first + chunks + chunk / 2u]);
    return Chunk(weight_aux[first + chunk], select(scales.x, scales.y, chunk % 2u == 1u));
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let head = chunk_of(row, chunk, chunks);
    let codes = five_bit_floats(weight_main[row * chunks + chunk][i], head.fifth, i);
    // code = 32 * (float - 1)
    return Weights8(codes[0], codes[1], head.scale * 32.0, head.scale * -48.0);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let head = chunk_of(row, chunk, chunks);
    let codes = five_bit_codes(weight_main[row * chunks + chunk][i], head.fifth, i);
    let sum = dot4I8Packed(codes.x, x.low) + dot4I8Packed(codes.y, x.high);
    return head.scale * f32(sum - 16 * (x.low_sum + x.high_sum));
}
