//! Fields of blocks: half-precision numbers, nibbles, fifth bits. Functions that kernels call are
//! `#[inline(always)]`, so that they are compiled for the kernel's instruction set.

/// `N` bytes of a block. The offsets are constants of the format, so the compiler drops the check.
#[inline(always)]
pub(crate) fn bytes<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    match block[at..].first_chunk() {
        Some(bytes) => bytes,
        None => panic!("{N} bytes at {at} of a block of {}", block.len()),
    }
}

/// Converts F16 to f32 by arithmetic on the bits, which every instruction set vectorises.
#[inline(always)]
pub fn f16_to_f32(bits: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bits));
    let magnitude = (bits & 0x7fff) << 13;
    // The scales of real models are often F16 subnormals. They avoid f32 subnormals, on which
    // arithmetic is slow.
    let subnormal = f32::from_bits(magnitude + 0x3880_0000) - f32::from_bits(0x3880_0000);
    let value = match magnitude {
        0x0f80_0000.. => magnitude | 0x7f80_0000,
        // From bias 15 to bias 127.
        0x0080_0000.. => magnitude + 0x3800_0000,
        _ => subnormal.to_bits(),
    };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

/// The F16 number at byte `at`.
#[inline(always)]
pub fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(*bytes(block, at))
}

/// Writes `value` as an F16 number at byte `at` of a block.
pub(super) fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// `x` as F16, little endian, and the stored value.
pub(super) fn to_f16(x: f32) -> ([u8; 2], f32) {
    let half = half::f16::from_f32(x);
    (half.to_le_bytes(), half.to_f32())
}

/// Splits sixteen bytes into low nibbles, then high nibbles. `code` converts each to a code.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8; 16], codes: &mut [i8; 32], code: impl Fn(u8) -> i8) {
    for (i, byte) in bytes.iter().enumerate() {
        codes[i] = code(byte & 15);
        codes[i + 16] = code(byte >> 4);
    }
}

/// Adds 16 to the codes whose bit is set. Bit `j` of a little-endian u32 belongs to element `j`.
#[inline(always)]
pub(super) fn add_fifth_bits(bits: &[u8; 4], codes: &mut [i8; 32]) {
    let bits = u32::from_le_bytes(*bits);
    for (i, code) in codes.iter_mut().enumerate() {
        *code += ((bits >> i & 1) << 4) as i8;
    }
}

/// Splits five-bit codes into fifth bits and nibbles, as stored in Q5_0 and Q5_1.
pub(super) fn split_fifth_bits(codes: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let fifth = codes.iter().enumerate().fold(0u32, |bits, (j, q)| bits | u32::from(q >> 4 & 1) << j);
    (fifth.to_le_bytes(), std::array::from_fn(|j| codes[j] & 15 | (codes[j + 16] & 15) << 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_to_f32_equals_the_library_for_all_bits() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits.to_le_bytes()), half::f16::from_bits(bits).to_f32());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{bits:#x}: {ours} {theirs}");
        }
    }
}
