// The bits of an f32 as an integer that compares as the float does: both zeros are one value, NaN is 0, below everything.
// Integers, because drivers need not compare NaN and infinity as IEEE 754 says.
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
