// Ternary weights with 2-bit codes, sixteen per word.
#include "pairs.wgsl"
#include "ternary.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec2<u32>>;

fn ternary8(row: u32, chunk: u32, i: u32, chunks: u32) -> vec2<u32> {
    let pairs = weight_main[row * chunks + chunk][i / 2u];
    let first = i % 2u * 2u;
    return vec2<u32>(spread_pairs(pairs, first), spread_pairs(pairs, first + 1u));
}
