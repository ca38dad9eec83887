//! IQ1_S: 256 elements in 50 bytes, eight sub-blocks of 32. `x = d * (2 scale + 1) * (value +
//! shift)`, with values -1, 0 and 1 and a shift of an eighth up or down. This file computes in
//! eighths: `x = d * (2 scale + 1) / 8 * (8 value + 8 shift)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..34 | bits 0..8 of the point number of every eight elements |
//! | 34..50 | per sub-block a u16: bits 8..11 of its four point numbers, three bits of scale, and a bit that is set where the shift is down |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk a byte per point.
//! `aux` has per block 4 words: two bytes per chunk, high bits, scale, shift; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::unpack_256,
    code_books::{self, IQ1 as POINTS},
    device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ1_S,
    len: 256,
    bytes: 50,
    grouping: Grouping { len: 32, minima: false, lowest: -9, highest: 9 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 1,
        aux_bytes: 18,
        code_book: Some(&code_books::IQ1_WORDS),
        wgsl: include_str!("iq1_s.wgsl"),
        repack: device::split_fields::<50, 32, 16>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(0.01, 0.1)),
};

#[inline(always)]
fn unpack(block: &[u8; 50], codes: &mut [i8; 256], scales: &mut [f32; 8], _: &mut [f32; 8]) {
    *scales = unpack_scales(block);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (point, shift) = (point(block, i), shift(block, i / 4));
        *codes = POINTS[point].map(|value| value + shift);
    }
}

#[inline(always)]
fn high_word(block: &[u8; 50], sub: usize) -> u16 {
    u16::from_le_bytes(*bytes(block, 34 + 2 * sub))
}

/// Index of the point, below 2048, of elements `8 i..8 i + 8`.
#[inline(always)]
pub fn point(block: &[u8; 50], i: usize) -> usize {
    let high = high_word(block, i / 4) >> (3 * (i % 4)) & 7;
    usize::from(block[2 + i]) | usize::from(high) << 8
}

/// Shift of a sub-block in eighths: 1 or -1.
#[inline(always)]
pub fn shift(block: &[u8; 50], sub: usize) -> i8 {
    if high_word(block, sub) & 0x8000 == 0 { 1 } else { -1 }
}

/// `d * (2 scale + 1) / 8` of the eight sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 50]) -> [f32; 8] {
    let d = f16_at(block, 0) * 0.125;
    std::array::from_fn(|sub| d * f32::from(2 * (high_word(block, sub) >> 12 & 7) + 1))
}
