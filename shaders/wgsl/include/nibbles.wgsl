// Four-bit codes, eight to a word: byte j holds column j of the low vec4 and, in its upper half, of its high one.
#include "load8.wgsl"

// 1 + code / 16 by putting the code at the top of a float's mantissa: cheaper than a conversion where those are slow.
fn nibble_floats(word: u32) -> array<vec4<f32>, 2> {
    let low = vec4<u32>(word << 19u, word << 11u, word << 3u, word >> 5u) & vec4<u32>(0x780000u);
    let high = vec4<u32>(word << 15u, word << 7u, word >> 1u, word >> 9u) & vec4<u32>(0x780000u);
    return array<vec4<f32>, 2>(
        bitcast<vec4<f32>>(low | vec4<u32>(0x3f800000u)),
        bitcast<vec4<f32>>(high | vec4<u32>(0x3f800000u)),
    );
}

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}
