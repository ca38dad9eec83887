//! Shared parts of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit mins in twelve bytes, and
//! nibbles in groups of 64 elements.
//!
//! Sub-blocks 0..4: the scale is the low six bits of byte `j`, the min those of byte `j + 4`.
//! Sub-blocks 4..8: the low four bits are the two nibbles of byte `j + 4` (scale low, min high),
//! the top two bits are the spare bits of bytes `j - 4` and `j`.

use super::{
    bits::{bytes, f16_at},
    device,
};

/// Scales and mins of the eight sub-blocks, one byte each.
#[inline(always)]
pub fn unpack(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |at: usize| u32::from_le_bytes(*bytes(packed, at));
    let (a, b, c) = (word(0), word(4), word(8));
    let low = |w: u32| u64::from(w & 0x3f3f_3f3f);
    let high = |nibbles: u32, w: u32| u64::from(nibbles & 0x0f0f_0f0f | (w >> 6 & 0x0303_0303) << 4) << 32;
    ((low(a) | high(c, a)).to_le_bytes(), (low(b) | high(c >> 4, b)).to_le_bytes())
}

/// The inverse of [`unpack`]. Values are below 64.
pub(super) fn pack(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
    }
    packed
}

/// `d * scale` and `-dmin * min` of the eight sub-blocks, from the first 16 bytes of a block.
#[inline(always)]
pub fn unpack_scales(header: &[u8; 16], scales: &mut [f32; 8], mins: &mut [f32; 8]) {
    let (d, dmin) = (f16_at(header, 0), f16_at(header, 2));
    let (s, m) = unpack(bytes(header, 4));
    for i in 0..8 {
        scales[i] = d * f32::from(s[i]);
        mins[i] = -dmin * f32::from(m[i]);
    }
}

/// The header on the GPU, reordered so that a kernel needs only a few shifts for a chunk's scale
/// and min. It has `d` and `dmin` unchanged, the low nibbles of the scales, the low nibbles of the
/// mins, and the high bit pairs of both.
pub(super) fn device_header(header: &[u8; 16]) -> [u8; 16] {
    let (scales, mins) = unpack(bytes(header, 4));
    let mut words = [u32::from_le_bytes(*bytes(header, 0)), 0, 0, 0];
    for (chunk, (scale, min)) in scales.into_iter().zip(mins).enumerate() {
        words[1] |= u32::from(scale & 15) << (4 * chunk);
        words[2] |= u32::from(min & 15) << (4 * chunk);
        words[3] |= u32::from(scale >> 4) << (2 * chunk) | u32::from(min >> 4) << (2 * chunk + 16);
    }
    let mut bytes = [0; 16];
    bytes.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

/// Rearranges the nibbles for the GPU, chunk by chunk. In the file each group of 64 elements has 32
/// bytes. Byte `l` has element `l` (low) and `l + 32` (high).
pub(super) fn device_nibbles(codes: &[u8; 128], main: &mut [u8; 128]) {
    for (chunk, out) in main.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let group = &codes[chunk / 2 * 32..][..32];
        *out = device::nibbles(&std::array::from_fn(|j| group[j] >> (chunk % 2 * 4) & 15));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pack_is_undone_by_unpack() {
        let scales = [0, 63, 17, 42, 5, 33, 62, 16];
        let mins = [63, 0, 31, 32, 48, 15, 1, 60];
        assert_eq!(unpack(&pack(&scales, &mins)), (scales, mins));
    }
}
