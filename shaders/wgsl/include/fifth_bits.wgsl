// Fifth bits of eight codes whose other four are nibbles: bit 4 i + j of a word is column j of the low vec4, bit 16 + 4 i + j that of
// the high one.

// One where the bit is set.
fn fifth_floats(word: u32, i: u32) -> array<vec4<f32>, 2> {
    let fifth = word >> (i * 4u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(fifth) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)),
        vec4<f32>((vec4<u32>(fifth) >> vec4<u32>(16u, 17u, 18u, 19u)) & vec4<u32>(1u)),
    );
}

// The five-bit codes, one to a byte.
fn five_bit_codes(nibbles: u32, word: u32, i: u32) -> vec2<u32> {
    let fifth = word >> (i * 4u);
    // Four bits in a row, multiplied, land one in each byte.
    let low = (nibbles & 0x0f0f0f0fu) | ((((fifth & 15u) * 0x204081u) & 0x01010101u) << 4u);
    let high = ((nibbles >> 4u) & 0x0f0f0f0fu) | (((((fifth >> 16u) & 15u) * 0x204081u) & 0x01010101u) << 4u);
    return vec2<u32>(low, high);
}
