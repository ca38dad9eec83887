// 2-bit codes: bits 8 i + 2 j of a word are column j of vec4 i.
#include "load8.wgsl"

// 1 + code / 4: the two bits of a code become the top of the mantissa of a 16-bit float, see
// nibble_floats.
fn pair_floats(word: u32, i: u32) -> vec4<f32> {
    let four = (word >> (i * 8u)) & 255u;
    // Columns j and j + 2, moved sixteen bits apart.
    let apart = four | (four << 12u);
    let a = unpack2x16float(((apart << 8u) & 0x03000300u) | 0x3c003c00u);
    let b = unpack2x16float(((apart << 6u) & 0x03000300u) | 0x3c003c00u);
    return vec4<f32>(a.x, b.x, a.y, b.y);
}

// 1 + code / 8, for codes whose third bits are the lowest four bits of `third`.
fn three_bit_floats(word: u32, i: u32, third: u32) -> vec4<f32> {
    let four = (word >> (i * 8u)) & 255u;
    let apart = four | (four << 12u);
    let bits = (third & 15u) | (third << 14u);
    let a = unpack2x16float(((apart << 7u) & 0x01800180u) | ((bits << 9u) & 0x02000200u) | 0x3c003c00u);
    let b = unpack2x16float(((apart << 5u) & 0x01800180u) | ((bits << 8u) & 0x02000200u) | 0x3c003c00u);
    return vec4<f32>(a.x, b.x, a.y, b.y);
}

// Four 2-bit codes, one per byte.
fn spread_pairs(word: u32, i: u32) -> u32 {
    let p = (word >> (i * 8u)) & 255u;
    return (p | (p << 6u) | (p << 12u) | (p << 18u)) & 0x03030303u;
}
