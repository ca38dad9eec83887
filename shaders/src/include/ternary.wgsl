// Weights of -1, 0 and 1 with a scale, for eight adjacent columns. The file of such a type defines
// `ternary8`, their codes 0, 1 and 2, one per byte, as two words. It also defines `scale_of`, the
// scale of a chunk.
#include "load8.wgsl"

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

fn byte_floats(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let codes = ternary8(row, chunk, i, chunks);
    let scale = scale_of(row, chunk, chunks);
    return Weights8(byte_floats(codes.x), byte_floats(codes.y), scale, -scale);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let codes = ternary8(row, chunk, i, chunks);
    let sum = dot4I8Packed(codes.x, x.low) + dot4I8Packed(codes.y, x.high);
    return scale_of(row, chunk, chunks) * f32(sum - x.low_sum - x.high_sum);
}
