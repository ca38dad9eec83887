// The weights are d * scale * code - dmin * min with a scale and a min for each half of a chunk.
// The Rust file of the same name describes the layout.
#include "pairs.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}

// Scale and minimum of both halves.
fn halves(at: u32, chunk: u32) -> array<vec2<f32>, 2> {
    let aux = (at / 8u) * 5u;
    let bytes = weight_aux[aux + 1u + (chunk % 8u) / 2u] >> ((chunk % 2u) * 16u);
    let d = unpack2x16float(weight_aux[aux]);
    return array<vec2<f32>, 2>(
        d * vec2<f32>(f32(bytes & 15u), f32((bytes >> 4u) & 15u)),
        d * vec2<f32>(f32((bytes >> 8u) & 15u), f32((bytes >> 12u) & 15u)),
    );
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    let pairs = weight_main[at];
    let scales = halves(at, chunk);
    // code = 4 * (float - 1)
    let low = 4.0 * scales[0].x;
    let high = 4.0 * scales[1].x;
    return Weights8(
        pair_floats(pairs.x, i) * low - (low + scales[0].y),
        pair_floats(pairs.y, i) * high - (high + scales[1].y),
        1.0,
        0.0,
    );
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    let pairs = weight_main[at];
    let scales = halves(at, chunk);
    return scales[0].x * f32(dot4I8Packed(spread_pairs(pairs.x, i), x.low)) - scales[0].y * f32(x.low_sum)
        + scales[1].x * f32(dot4I8Packed(spread_pairs(pairs.y, i), x.high)) - scales[1].y * f32(x.high_sum);
}
