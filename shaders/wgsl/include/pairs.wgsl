// Pairs of bits of eight codes: bits 8 i + 2 j of a word are column j of a vec4.
#include "load8.wgsl"

fn pair_codes(word: u32, i: u32) -> vec4<u32> {
    return (vec4<u32>(word >> (i * 8u)) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
}

// Four pairs of bits, one to a byte.
fn spread_pairs(word: u32, i: u32) -> u32 {
    let p = (word >> (i * 8u)) & 255u;
    return (p | (p << 6u) | (p << 12u) | (p << 18u)) & 0x03030303u;
}
