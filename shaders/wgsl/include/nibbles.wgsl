// Four-bit codes, eight to a word: byte j holds column j of the low vec4 and, in its upper half, of its high one.
#include "load8.wgsl"

// 1 + code / 16 by putting the codes at the top of the mantissas of two halves: no conversion of integers, and where a processor
// multiplies halves with floats none at all.
fn nibble_floats(word: u32) -> array<vec4<f32>, 2> {
    let mask = 0x03c003c0u;
    let one = 0x3c003c00u;
    let a = unpack2x16float(((word << 6u) & mask) | one);
    let b = unpack2x16float(((word >> 2u) & mask) | one);
    let c = unpack2x16float(((word << 2u) & mask) | one);
    let d = unpack2x16float(((word >> 6u) & mask) | one);
    return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(c.x, d.x, c.y, d.y));
}

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}
