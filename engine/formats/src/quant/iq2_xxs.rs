//! IQ2_XXS: 256 elements in 66 bytes, eight sub-blocks of 32. `x = d * (scale + 1/2) / 4 *
//! magnitude * sign`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..66 | per sub-block: four point numbers, then a u32 of four times seven signs and, in its upper four bits, the scale |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk a byte per point.
//! `aux` has per block 8 words, one per chunk: signs and scale; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::unpack_256,
    code_books::{self, IQ2_XXS as POINTS, even_signs},
    device::split_blocks,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ2_XXS,
    len: 256,
    bytes: 66,
    grouping: Grouping { len: 32, minima: false, lowest: -43, highest: 43 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 1,
        aux_bytes: 34,
        code_book: Some(&code_books::IQ2_XXS_WORDS),
        wgsl: include_str!("iq2_xxs.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(0.001, 0.005)),
};

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    split_blocks::<66, 32, 32>(row, main, aux, |block, main, aux| {
        let out = main.as_chunks_mut::<4>().0.iter_mut().zip(aux.as_chunks_mut::<4>().0);
        for (sub, (points, signs)) in block[2..].as_chunks::<8>().0.iter().zip(out) {
            points.copy_from_slice(&sub[..4]);
            signs.copy_from_slice(&sub[4..]);
        }
        [block[0], block[1]]
    })
}

#[inline(always)]
fn unpack(block: &[u8; 66], codes: &mut [i8; 256], scales: &mut [f32; 8], _: &mut [f32; 8]) {
    *scales = unpack_scales(block);
    for (sub, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (points, signs) = (bytes::<4>(block, 2 + 8 * sub), sign_word(block, sub));
        for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            code_books::store_signed(codes, &POINTS[usize::from(points[i])], even_signs(signs >> (7 * i)));
        }
    }
}

/// Signs and scale of a sub-block.
#[inline(always)]
pub fn sign_word(block: &[u8; 66], sub: usize) -> u32 {
    u32::from_le_bytes(*bytes(block, 6 + 8 * sub))
}

/// `d * (scale + 1/2) / 4` of the eight sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 66]) -> [f32; 8] {
    let d = f16_at(block, 0) * 0.125;
    std::array::from_fn(|sub| d * (2 * (sign_word(block, sub) >> 28) + 1) as f32)
}
