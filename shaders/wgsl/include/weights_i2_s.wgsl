// I2_S weights, factor * (code - 1) with a factor for each row; see WeightType.
#include "pairs.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<f32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let pairs = weight_main[row * chunks + chunk][i / 2u];
    let factor = weight_aux[row];
    let first = i % 2u * 2u;
    return Weights8(vec4<f32>(pair_codes(pairs, first)), vec4<f32>(pair_codes(pairs, first + 1u)), factor, -factor);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let pairs = weight_main[row * chunks + chunk][i / 2u];
    let first = i % 2u * 2u;
    let sum = dot4I8Packed(spread_pairs(pairs, first), x.low) + dot4I8Packed(spread_pairs(pairs, first + 1u), x.high);
    return weight_aux[row] * f32(sum - x.low_sum - x.high_sum);
}
