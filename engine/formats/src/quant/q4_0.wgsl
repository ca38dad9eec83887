// The weights are scale * (code - 8). The Rust file of the same name describes the layout.
#include "nibbles.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let codes = nibble_floats(weight_main[row * chunks + chunk][i]);
    let scales = unpack2x16float(weight_aux[row * ((chunks + 1u) / 2u) + chunk / 2u]);
    let scale = select(scales.x, scales.y, chunk % 2u == 1u);
    // code = 16 * (float - 1)
    return Weights8(codes[0], codes[1], scale * 16.0, scale * -24.0);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let codes = weight_main[row * chunks + chunk][i];
    let scales = unpack2x16float(weight_aux[row * ((chunks + 1u) / 2u) + chunk / 2u]);
    let sum = dot4I8Packed(codes & 0x0f0f0f0fu, x.low) + dot4I8Packed((codes >> 4u) & 0x0f0f0f0fu, x.high);
    return select(scales.x, scales.y, chunk % 2u == 1u) * f32(sum - 8 * (x.low_sum + x.high_sum));
}
