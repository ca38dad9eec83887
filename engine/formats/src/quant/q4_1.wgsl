// The weights are scale * code + min. The Rust file of the same name describes the layout.
#include "nibbles.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    let codes = nibble_floats(weight_main[at][i]);
    let scales = unpack2x16float(weight_aux[at]);
    // code = 16 * (float - 1)
    return Weights8(codes[0], codes[1], scales.x * 16.0, scales.y - scales.x * 16.0);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    let codes = weight_main[at][i];
    let scales = unpack2x16float(weight_aux[at]);
    let sum = dot4I8Packed(codes & 0x0f0f0f0fu, x.low) + dot4I8Packed((codes >> 4u) & 0x0f0f0f0fu, x.high);
    return scales.x * f32(sum) + scales.y * f32(x.low_sum + x.high_sum);
}
