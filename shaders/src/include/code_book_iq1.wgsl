// Weights that are points of the code book of -1, 0 and 1, plus a shift, for eight adjacent
// columns. The file of such a type defines `point8`, which returns the index, scales and shift of
// the point.
#include "pairs.wgsl"

// Two points per word, two bits per coordinate. A coordinate's value is its code minus one.
@group(0) @binding(7) var<storage, read> code_book: array<u32>;

struct Point8 {
    number: u32,
    // Scale of the chunk, and a factor of these eight weights.
    scale: f32,
    factor: f32,
    // Shift of all eight weights, an eighth up or down.
    shift: f32,
}

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

fn coordinates(number: u32) -> u32 {
    return code_book[number / 2u] >> (number % 2u * 16u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let point = point8(row, chunk, i, chunks);
    let pairs = coordinates(point.number);
    return Weights8(
        (4.0 * pair_floats(pairs, 0u) + (point.shift - 5.0)) * point.factor,
        (4.0 * pair_floats(pairs, 1u) + (point.shift - 5.0)) * point.factor,
        point.scale,
        0.0,
    );
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let point = point8(row, chunk, i, chunks);
    let pairs = coordinates(point.number);
    let sum = dot4I8Packed(spread_pairs(pairs, 0u), x.low) + dot4I8Packed(spread_pairs(pairs, 1u), x.high);
    return point.scale * point.factor * (f32(sum) + (point.shift - 1.0) * f32(x.low_sum + x.high_sum));
}
