// 4-bit codes, eight per word: byte j holds column j of the low vec4 in its lower half, and column
// j of the high vec4 in its upper half.
#include "load8.wgsl"

// 1 + code / 16: each code becomes the top of the mantissa of a 16-bit float. This needs no integer
// conversion, and no conversion at all on processors that multiply 16-bit with 32-bit floats.
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
