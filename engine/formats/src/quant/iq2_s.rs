//! IQ2_S: 256 elements in 82 bytes, sixteen sub-blocks of 16. `x = d * (scale + 1/2) / 4 *
//! magnitude * sign`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..34 | bits 0..8 of the point number of every eight elements |
//! | 34..66 | signs: bit `j` of byte `i` is set where element `8 i + j` is negative |
//! | 66..74 | bits 8..10 of the point numbers: bits `2i..2i+2` of byte `l` belong to elements `32 l + 8 i..` |
//! | 74..82 | scales, two per byte, low nibble first |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk a byte per point.
//! `aux` has per block 12 words: 8 of signs, 2 of high bit pairs, 2 of scales; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::unpack_256,
    code_books::{self, IQ2_S as POINTS},
    device, iq2_xs,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ2_S,
    len: 256,
    bytes: 82,
    grouping: Grouping { len: 16, minima: false, lowest: -43, highest: 43 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 1,
        aux_bytes: 50,
        code_book: Some(&code_books::IQ2_S_WORDS),
        wgsl: include_str!("iq2_s.wgsl"),
        repack: device::split_fields::<82, 32, 48>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(0.001, 0.005)),
};

#[inline(always)]
fn unpack(block: &[u8; 82], codes: &mut [i8; 256], scales: &mut [f32; 16], _: &mut [f32; 16]) {
    *scales = unpack_scales(block);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (point, signs) = point_and_signs(block, i);
        code_books::store_signed(codes, &POINTS[point], signs);
    }
}

/// Index of the point, below 1024, and signs of elements `8 i..8 i + 8`.
#[inline(always)]
pub fn point_and_signs(block: &[u8; 82], i: usize) -> (usize, u8) {
    let high = usize::from(block[66 + i / 4] >> (2 * (i % 4)) & 3);
    (usize::from(block[2 + i]) | high << 8, block[34 + i])
}

/// `d * (scale + 1/2) / 4` of the sixteen sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 82]) -> [f32; 16] {
    iq2_xs::quarter_scales(f16_at(block, 0), bytes(block, 74))
}
