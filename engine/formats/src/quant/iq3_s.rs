//! IQ3_S: 256 elements in 110 bytes, eight sub-blocks of 32. `x = d * (2 scale + 1) * magnitude *
//! sign`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..66 | bits 0..8 of the point number of every four elements |
//! | 66..74 | bit 8 of the point numbers: bit `j` of byte `l` belongs to elements `32 l + 4 j..` |
//! | 74..106 | signs: bit `j` of byte `i` is set where element `8 i + j` is negative |
//! | 106..110 | scales, two per byte, low nibble first |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk a byte per point.
//! `aux` has per block 11 words: 2 of high bits of points, 8 of signs, 1 of scales; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::f16_at,
    bits::put_f16,
    block_format::unpack_256,
    code_books::{self, IQ3_S as POINTS},
    device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ3_S,
    len: 256,
    bytes: 110,
    grouping: Grouping { len: 32, minima: false, lowest: -15, highest: 15 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 46,
        code_book: Some(&code_books::IQ3_S_WORDS),
        wgsl: include_str!("iq3_s.wgsl"),
        repack: device::split_fields::<110, 64, 44>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(0.001, 0.003)),
};

#[inline(always)]
fn unpack(block: &[u8; 110], codes: &mut [i8; 256], scales: &mut [f32; 8], _: &mut [f32; 8]) {
    *scales = unpack_scales(block);
    for (i, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        code_books::store_signed(codes, &POINTS[point(block, i)], block[74 + i / 2] >> (4 * (i % 2)));
    }
}

/// Index of the point, below 512, of elements `4 i..4 i + 4`.
#[inline(always)]
pub fn point(block: &[u8; 110], i: usize) -> usize {
    usize::from(block[2 + i]) | usize::from(block[66 + i / 8] >> (i % 8) & 1) << 8
}

/// `d * (2 scale + 1)` of the eight sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 110]) -> [f32; 8] {
    let d = f16_at(block, 0);
    std::array::from_fn(|sub| d * f32::from(2 * (block[106 + sub / 2] >> (4 * (sub % 2)) & 15) + 1))
}
