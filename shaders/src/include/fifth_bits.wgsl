// Fifth bits of eight codes whose other four bits are nibbles. Bit 4 i + j of a word belongs to
// column j of the low vec4, bit 16 + 4 i + j to column j of the high vec4.

// 1 + code / 32: the five bits of a code become the top of the mantissa of a 16-bit float, see
// nibble_floats.
fn five_bit_floats(nibbles: u32, word: u32, i: u32) -> array<vec4<f32>, 2> {
    let mask = 0x01e001e0u;
    let one = 0x3c003c00u;
    let fifth = 0x02000200u;
    // Columns j and j + 2 of a half of the chunk, moved sixteen bits apart.
    let lower = ((word & 0xffffu) | (word << 14u)) >> (i * 4u);
    let upper = ((word >> 16u) | ((word >> 16u) << 14u)) >> (i * 4u);
    let a = unpack2x16float(((nibbles << 5u) & mask) | ((lower << 9u) & fifth) | one);
    let b = unpack2x16float(((nibbles >> 3u) & mask) | ((lower << 8u) & fifth) | one);
    let c = unpack2x16float(((nibbles << 1u) & mask) | ((upper << 9u) & fifth) | one);
    let d = unpack2x16float(((nibbles >> 7u) & mask) | ((upper << 8u) & fifth) | one);
    return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(c.x, d.x, c.y, d.y));
}

// The five-bit codes, one per byte.
fn five_bit_codes(nibbles: u32, word: u32, i: u32) -> vec2<u32> {
    let fifth = word >> (i * 4u);
    // The product puts one of four adjacent bits into each byte.
    let low = (nibbles & 0x0f0f0f0fu) | ((((fifth & 15u) * 0x204081u) & 0x01010101u) << 4u);
    let high = ((nibbles >> 4u) & 0x0f0f0f0fu) | (((((fifth >> 16u) & 15u) * 0x204081u) & 0x01010101u) << 4u);
    return vec2<u32>(low, high);
}
