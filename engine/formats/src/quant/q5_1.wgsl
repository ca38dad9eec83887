// The weights are scale * code + min. The Rust file of the same name describes the layout.
#include "nibbles.wgsl"
#include "fifth_bits.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<vec2<u32>>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    let codes = five_bit_floats(weight_main[at][i], weight_aux[at].x, i);
    let scales = unpack2x16float(weight_aux[at].y);
    // code = 32 * (float - 1)
    return Weights8(codes[0], codes[1], scales.x * 32.0, scales.y - scales.x * 32.0);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    let codes = five_bit_codes(weight_main[at][i], weight_aux[at].x, i);
    let scales = unpack2x16float(weight_aux[at].y);
    let sum = dot4I8Packed(codes.x, x.low) + dot4I8Packed(codes.y, x.high);
    return scales.x * f32(sum) + scales.y * f32(x.low_sum + x.high_sum);
}
