// Weights that are points of a code book: magnitudes with signs, for eight adjacent columns. The
// file of such a type defines `codes8`, their signed codes, one per byte, as two words. It also
// defines `scales_of`: the scale of the chunk, and a factor of these eight weights.
#include "load8.wgsl"

// The coordinates of every point, one per byte. None is 0.
@group(0) @binding(7) var<storage, read> code_book: array<u32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

// Four magnitudes, negated if their bit of `signs` is set.
fn signed_codes(magnitudes: u32, signs: u32) -> u32 {
    // The product puts one of four adjacent bits into each byte. Negation is complement plus one.
    // No byte is 0, so nothing carries.
    let negative = ((signs & 15u) * 0x204081u) & 0x01010101u;
    return (magnitudes ^ (negative * 255u)) + negative;
}

// Eight signs from seven bits. The eighth makes the number of set bits even.
fn even_signs(seven: u32) -> u32 {
    let bits = seven & 127u;
    return bits | ((countOneBits(bits) & 1u) << 7u);
}

// A point of eight coordinates, with signs.
fn signed_point8(point: u32, signs: u32) -> vec2<u32> {
    return vec2<u32>(
        signed_codes(code_book[2u * point], signs),
        signed_codes(code_book[2u * point + 1u], signs >> 4u),
    );
}

// Two points of four coordinates, with signs.
fn signed_points4(first: u32, second: u32, signs: u32) -> vec2<u32> {
    return vec2<u32>(signed_codes(code_book[first], signs), signed_codes(code_book[second], signs >> 4u));
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let codes = codes8(row, chunk, i, chunks);
    let scales = scales_of(row, chunk, i, chunks);
    return Weights8(
        vec4<f32>(unpack4xI8(codes.x)) * scales.y,
        vec4<f32>(unpack4xI8(codes.y)) * scales.y,
        scales.x,
        0.0,
    );
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let codes = codes8(row, chunk, i, chunks);
    let sum = dot4I8Packed(codes.x, x.low) + dot4I8Packed(codes.y, x.high);
    let scales = scales_of(row, chunk, i, chunks);
    return scales.x * scales.y * f32(sum);
}
