//! IQ3_XXS: 256 elements in 98 bytes, eight sub-blocks of 32. `x = d * (scale + 1/2) / 2 *
//! magnitude * sign`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..66 | the point number of every four elements |
//! | 66..98 | per sub-block a u32 of four times seven signs and, in its upper four bits, the scale |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk a byte per point.
//! `aux` has per block 8 words, one per chunk: signs and scale; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::unpack_256,
    code_books::{self, IQ3_XXS as POINTS, even_signs},
    device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ3_XXS,
    len: 256,
    bytes: 98,
    grouping: Grouping { len: 32, minima: false, lowest: -62, highest: 62 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 34,
        code_book: Some(&code_books::IQ3_XXS_WORDS),
        wgsl: include_str!("iq3_xxs.wgsl"),
        repack: device::split_fields::<98, 64, 32>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(0.001, 0.003)),
};

#[inline(always)]
fn unpack(block: &[u8; 98], codes: &mut [i8; 256], scales: &mut [f32; 8], _: &mut [f32; 8]) {
    *scales = unpack_scales(block);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let signs = even_signs(sign_word(block, i / 4) >> (7 * (i % 4)));
        for (half, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let point = usize::from(block[2 + 2 * i + half]);
            code_books::store_signed(codes, &POINTS[point], signs >> (4 * half));
        }
    }
}

/// Signs and scale of a sub-block.
#[inline(always)]
pub fn sign_word(block: &[u8; 98], sub: usize) -> u32 {
    u32::from_le_bytes(*bytes(block, 66 + 4 * sub))
}

/// `d * (scale + 1/2) / 2` of the eight sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 98]) -> [f32; 8] {
    let d = f16_at(block, 0) * 0.25;
    std::array::from_fn(|sub| d * (2 * (sign_word(block, sub) >> 28) + 1) as f32)
}
