// Magnitudes with signs: eight adjacent columns, with eight sign bits.
#include "load8.wgsl"

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

// Magnitudes, negated if their bit of the lowest four is set.
fn signed4(magnitudes: vec4<u32>, signs: u32) -> vec4<f32> {
    let negative = (vec4<u32>(signs) << vec4<u32>(31u, 30u, 29u, 28u)) & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(vec4<f32>(magnitudes)) | negative);
}
