// MXFP4 weights, 2^(e - 128) * (0, 1, 2, 3, 4, 6, 8 or 12, with a sign); see WeightType.
#include "load8.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

// Magnitudes of the lower three bits of a code, one to a nibble.
const MAGNITUDES: u32 = 0xc8643210u;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}

// Values of four codes in the lower four bits.
fn values_of(codes: vec4<u32>) -> vec4<f32> {
    let magnitudes = (vec4<u32>(MAGNITUDES) >> ((codes & vec4<u32>(7u)) << vec4<u32>(2u))) & vec4<u32>(15u);
    let signs = (codes & vec4<u32>(8u)) << vec4<u32>(28u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(vec4<f32>(magnitudes)) | signs);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let word = weight_main[(row * chunks + chunk) * 4u + i];
    let e = (weight_aux[row * ((chunks + 3u) / 4u) + chunk / 4u] >> (chunk % 4u * 8u)) & 255u;
    // The smallest two are below the normal numbers.
    let scale = select(0.0, bitcast<f32>((max(e, 1u) - 1u) << 23u), e > 1u);
    let bytes = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u);
    return Weights8(values_of(bytes), values_of(bytes >> vec4<u32>(4u)), scale, 0.0);
}
