// The weights are d * scale * (code - 32) with a scale for each half of a chunk. The Rust file of
// the same name describes the layout.
#include "nibbles.wgsl"
#include "pairs.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

// 1 + code / 64: the six bits of a code become the top of the mantissa of a 16-bit float, see
// nibble_floats.
fn six_bit_floats(nibbles: u32, low_pairs: u32, high_pairs: u32, i: u32) -> array<vec4<f32>, 2> {
    let mask = 0x00f000f0u;
    let one = 0x3c003c00u;
    let upper = 0x03000300u;
    // Bit pairs of columns j and j + 2, moved sixteen bits apart.
    let low = (low_pairs >> (i * 8u)) & 255u;
    let high = (high_pairs >> (i * 8u)) & 255u;
    let lows = low | (low << 12u);
    let highs = high | (high << 12u);
    let a = unpack2x16float(((nibbles << 4u) & mask) | ((lows << 8u) & upper) | one);
    let b = unpack2x16float(((nibbles >> 4u) & mask) | ((lows << 6u) & upper) | one);
    let c = unpack2x16float((nibbles & mask) | ((highs << 8u) & upper) | one);
    let d = unpack2x16float(((nibbles >> 8u) & mask) | ((highs << 6u) & upper) | one);
    return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(c.x, d.x, c.y, d.y));
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 21u;
    let pair = aux + (chunk % 8u) * 2u;
    let codes = six_bit_floats(weight_main[at][i], weight_aux[pair], weight_aux[pair + 1u], i);
    let scales = bitcast<i32>(weight_aux[aux + 16u + (chunk % 8u) / 2u] >> ((chunk % 2u) * 16u));
    let low = f32(extractBits(scales, 0u, 8u));
    let high = f32(extractBits(scales, 8u, 8u));
    let d = unpack2x16float(weight_aux[aux + 20u]).x * 64.0;
    // (code - 32) / 64 = float - 1.5
    return Weights8(codes[0] * low - 1.5 * low, codes[1] * high - 1.5 * high, d, 0.0);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 21u;
    let pair = aux + (chunk % 8u) * 2u;
    let codes = weight_main[at][i];
    let low = (codes & 0x0f0f0f0fu) | (spread_pairs(weight_aux[pair], i) << 4u);
    let high = ((codes >> 4u) & 0x0f0f0f0fu) | (spread_pairs(weight_aux[pair + 1u], i) << 4u);
    let scales = bitcast<i32>(weight_aux[aux + 16u + (chunk % 8u) / 2u] >> ((chunk % 2u) * 16u));
    let sum = (dot4I8Packed(low, x.low) - 32 * x.low_sum) * extractBits(scales, 0u, 8u)
        + (dot4I8Packed(high, x.high) - 32 * x.high_sum) * extractBits(scales, 8u, 8u);
    return unpack2x16float(weight_aux[aux + 20u]).x * f32(sum);
}
