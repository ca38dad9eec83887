// The sixteen values of IQ4_NL and IQ4_XS, four per word.
#include "load8.wgsl"

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}

// The words that contain the values of four codes, each in the lower four bits.
fn value_words(codes: vec4<u32>) -> vec4<u32> {
    let odd = (codes & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(0xbfad9881u), vec4<u32>(0xf6eaddcfu), odd);
    let high = select(vec4<u32>(0x26190d01u), vec4<u32>(0x71594535u), odd);
    return select(low, high, (codes & vec4<u32>(8u)) != vec4<u32>(0u));
}

// Values of four codes, each in the lower four bits.
fn iq4_values(codes: vec4<u32>) -> vec4<f32> {
    // Shifts the selected byte to the top, so that its sign becomes the sign of the word.
    let bytes = value_words(codes) << ((vec4<u32>(3u) - (codes & vec4<u32>(3u))) << vec4<u32>(3u));
    return vec4<f32>(bitcast<vec4<i32>>(bytes) >> vec4<u32>(24u));
}

// Values of the low nibbles of a word, one per byte.
fn iq4_packed(word: u32) -> u32 {
    let codes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    let bytes = (value_words(codes) >> ((codes & vec4<u32>(3u)) << vec4<u32>(3u))) & vec4<u32>(255u);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}

fn iq4_weights(word: u32, scale: f32) -> Weights8 {
    let bytes = vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u);
    return Weights8(iq4_values(bytes), iq4_values(bytes >> vec4<u32>(4u)), scale, 0.0);
}

fn iq4_dot(word: u32, x: PackedInput) -> i32 {
    return dot4I8Packed(iq4_packed(word), x.low) + dot4I8Packed(iq4_packed(word >> 4u), x.high);
}
