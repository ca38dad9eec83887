// Q5_K weights, scale * code - min; see WeightType.
#include "nibbles.wgsl"
#include "super_scales.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<vec4<u32>>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 3u;
    let fifth = weight_aux[aux + 1u + (chunk % 8u) / 4u][chunk % 4u] >> (i * 4u);
    // The fifth bit stands for one more: 16 of the sixteenths.
    let low = vec4<f32>((vec4<u32>(fifth) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u));
    let high = vec4<f32>((vec4<u32>(fifth) >> vec4<u32>(16u, 17u, 18u, 19u)) & vec4<u32>(1u));
    let codes = nibble_floats(weight_main[at * 4u + i]);
    let scales = chunk_scale_and_min(weight_aux[aux], chunk);
    // code = 16 * (float - 1)
    return Weights8(codes[0] + low, codes[1] + high, scales.x * 16.0, scales.x * -16.0 - scales.y);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 3u;
    let codes = weight_main[at * 4u + i];
    let fifth = weight_aux[aux + 1u + (chunk % 8u) / 4u][chunk % 4u] >> (i * 4u);
    // Four bits in a row, multiplied, land one in each byte.
    let low = (codes & 0x0f0f0f0fu) | ((((fifth & 15u) * 0x204081u) & 0x01010101u) << 4u);
    let high = ((codes >> 4u) & 0x0f0f0f0fu) | (((((fifth >> 16u) & 15u) * 0x204081u) & 0x01010101u) << 4u);
    let scales = chunk_scale_and_min(weight_aux[aux], chunk);
    let sum = dot4I8Packed(low, x.low) + dot4I8Packed(high, x.high);
    return scales.x * f32(sum) - scales.y * f32(x.low_sum + x.high_sum);
}
