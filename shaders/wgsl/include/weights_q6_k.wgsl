// Q6_K weights, d * scale * (code - 32) with a scale for each half of a chunk; see WeightType.
#include "nibbles.wgsl"
#include "pairs.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 21u;
    let pair = aux + (chunk % 8u) * 2u;
    // The upper two bits stand for 16 each.
    let low = vec4<f32>(pair_codes(weight_aux[pair], i));
    let high = vec4<f32>(pair_codes(weight_aux[pair + 1u], i));
    let codes = nibble_floats(weight_main[at * 4u + i]);
    let scales = bitcast<i32>(weight_aux[aux + 16u + (chunk % 8u) / 2u] >> ((chunk % 2u) * 16u));
    let d = unpack2x16float(weight_aux[aux + 20u]).x * 16.0;
    // (code - 32) / 16 = float - 3
    return Weights8(
        (codes[0] + low - 3.0) * f32(extractBits(scales, 0u, 8u)),
        (codes[1] + high - 3.0) * f32(extractBits(scales, 8u, 8u)),
        d,
        0.0,
    );
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 21u;
    let pair = aux + (chunk % 8u) * 2u;
    let codes = weight_main[at * 4u + i];
    let low = (codes & 0x0f0f0f0fu) | (spread_pairs(weight_aux[pair], i) << 4u);
    let high = ((codes >> 4u) & 0x0f0f0f0fu) | (spread_pairs(weight_aux[pair + 1u], i) << 4u);
    let scales = bitcast<i32>(weight_aux[aux + 16u + (chunk % 8u) / 2u] >> ((chunk % 2u) * 16u));
    let sum = (dot4I8Packed(low, x.low) - 32 * x.low_sum) * extractBits(scales, 0u, 8u)
        + (dot4I8Packed(high, x.high) - 32 * x.high_sum) * extractBits(scales, 8u, 8u);
    return unpack2x16float(weight_aux[aux + 20u]).x * f32(sum);
}
