// The weights are scale * code - min. The Rust file of the same name describes the layout.
#include "nibbles.wgsl"
#include "fifth_bits.wgsl"
#include "super_scales.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<vec4<u32>>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 3u;
    let codes = five_bit_floats(weight_main[at][i], weight_aux[aux + 1u + (chunk % 8u) / 4u][chunk % 4u], i);
    let scales = chunk_scale_and_min(weight_aux[aux], chunk);
    // code = 32 * (float - 1)
    return Weights8(codes[0], codes[1], scales.x * 32.0, scales.x * -32.0 - scales.y);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 3u;
    let codes = five_bit_codes(weight_main[at][i], weight_aux[aux + 1u + (chunk % 8u) / 4u][chunk % 4u], i);
    let scales = chunk_scale_and_min(weight_aux[aux], chunk);
    let sum = dot4I8Packed(codes.x, x.low) + dot4I8Packed(codes.y, x.high);
    return scales.x * f32(sum) - scales.y * f32(x.low_sum + x.high_sum);
}
