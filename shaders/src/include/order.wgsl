// Maps the bits of an f32 to an integer with the same order. Both zeros are equal, and NaN is 0,
// below everything. Integers are used because drivers need not compare NaN and infinity as in IEEE
// 754.
fn order_of(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return 0u;
    }
    if magnitude == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits != magnitude);
}
