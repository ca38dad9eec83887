//! BF16: the upper half of an IEEE 754 single, little endian, one element per "block". Rounds to
//! nearest even.

use half::bf16;

pub(super) fn dequantise(src: &[u8], dst: &mut [f32]) {
    for (out, bytes) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

pub(super) fn quantise(src: &[f32], dst: &mut Vec<u8>) {
    src.iter().for_each(|x| dst.extend_from_slice(&bf16::from_f32(*x).to_le_bytes()));
}
