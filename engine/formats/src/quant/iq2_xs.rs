//! IQ2_XS: 256 elements in 74 bytes, sixteen sub-blocks of 16. `x = d * (scale + 1/2) / 4 *
//! magnitude * sign`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..66 | per eight elements a u16: nine bits of a point number, then seven signs |
//! | 66..74 | scales, two per byte, low nibble first |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk two bytes per
//! point, with its signs. `aux` has per block 2 words of scales; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::unpack_256,
    code_books::{self, IQ2_XS as POINTS, even_signs},
    device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ2_XS,
    len: 256,
    bytes: 74,
    grouping: Grouping { len: 16, minima: false, lowest: -43, highest: 43 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 10,
        code_book: Some(&code_books::IQ2_XS_WORDS),
        wgsl: include_str!("iq2_xs.wgsl"),
        repack: device::split_fields::<74, 64, 8>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(0.001, 0.005)),
};

#[inline(always)]
fn unpack(block: &[u8; 74], codes: &mut [i8; 256], scales: &mut [f32; 16], _: &mut [f32; 16]) {
    *scales = unpack_scales(block);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (point, signs) = point_and_signs(block, i);
        code_books::store_signed(codes, &POINTS[point], signs);
    }
}

/// Index of the point, below 512, and signs of elements `8 i..8 i + 8`.
#[inline(always)]
pub fn point_and_signs(block: &[u8; 74], i: usize) -> (usize, u8) {
    let code = u16::from_le_bytes(*bytes(block, 2 + 2 * i));
    (usize::from(code & 511), even_signs(u32::from(code >> 9)))
}

/// `d * (scale + 1/2) / 4` of the sixteen sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 74]) -> [f32; 16] {
    quarter_scales(f16_at(block, 0), bytes(block, 66))
}

/// `d * (scale + 1/2) / 4` of sixteen four-bit scales, low nibbles first.
#[inline(always)]
pub(super) fn quarter_scales(d: f32, packed: &[u8; 8]) -> [f32; 16] {
    let d = d * 0.125;
    std::array::from_fn(|sub| d * f32::from(2 * (packed[sub / 2] >> (4 * (sub % 2)) & 15) + 1))
}
