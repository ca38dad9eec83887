// Values of 4-bit floats, doubled: 0, 1, 2, 3, 4, 6, 8 or 12, with a sign.
#include "load8.wgsl"

// Magnitudes by the lower three bits of a code, one per nibble.
const MAGNITUDES: u32 = 0xc8643210u;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}

// Values of four codes, each in the lower four bits.
fn values_of(codes: vec4<u32>) -> vec4<f32> {
    let magnitudes = (vec4<u32>(MAGNITUDES) >> ((codes & vec4<u32>(7u)) << vec4<u32>(2u))) & vec4<u32>(15u);
    let signs = (codes & vec4<u32>(8u)) << vec4<u32>(28u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(vec4<f32>(magnitudes)) | signs);
}
