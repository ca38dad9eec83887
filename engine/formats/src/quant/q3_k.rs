//! Q3_K: 256 elements in 110 bytes, sixteen sub-blocks of 16. `x = d * (scale - 32) * (q - 4)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | bit 2 of `q`: bit `b` of byte `l` belongs to element `32 b + l` |
//! | 32..96 | bits 0..2 of `q`: each half of 128 elements has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 96..108 | scales, 6 bits, see [`scale_codes`] |
//! | 108..110 | `d`, F16 |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk low bit pairs.
//! `aux` has per block 11 words: 8 of high bits; scales: 2 of nibbles, 1 of high pairs; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::unpack_256,
    device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q3_K,
    len: 256,
    bytes: 110,
    grouping: Grouping { len: 16, minima: false, lowest: -4, highest: 3 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 46,
        wgsl: include_str!("q3_k.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 108, random(-0.02, 0.02)),
};

#[inline(always)]
fn unpack(block: &[u8; 110], codes: &mut [i8; 256], scales: &mut [f32; 16], _: &mut [f32; 16]) {
    unpack_scales(block, scales);
    unpack_codes(block, codes);
}

/// `q - 4` of all elements.
#[inline(always)]
fn unpack_codes(block: &[u8; 110], codes: &mut [i8; 256]) {
    let high: &[u8; 32] = bytes(block, 0);
    for (half, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let pairs: &[u8; 32] = bytes(block, 32 + 32 * half);
        for (s, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (i, code) in codes.iter_mut().enumerate() {
                let bit = high[i] >> (4 * half + s) & 1;
                *code = (pairs[i] >> (2 * s) & 3) as i8 - 4 * (1 - bit as i8);
            }
        }
    }
}

/// `d * (scale - 32)` of the sixteen sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 110], scales: &mut [f32; 16]) {
    let d = f16_at(block, 108);
    for (scale, q) in scales.iter_mut().zip(scale_codes(block).as_flattened()) {
        *scale = d * (f32::from(*q) - 32.0);
    }
}

/// The sixteen 6-bit scales, one byte each, with 32 added. Scale `j` has its low four bits in
/// nibble `j / 8` of byte `96 + j % 8` and its high two bits in bits `2 (j / 4)..` of byte `104 + j
/// % 4`.
#[inline(always)]
pub fn scale_codes(block: &[u8; 110]) -> [[u8; 8]; 2] {
    let (low, high) = (u64::from_le_bytes(*bytes(block, 96)), u32::from_le_bytes(*bytes(block, 104)));
    let upper = |shift: u32| u64::from(high >> shift & 0x0303_0303);
    let scales = |low: u64, shift| low & 0x0f0f_0f0f_0f0f_0f0f | (upper(shift) | upper(shift + 2) << 32) << 4;
    [scales(low, 0).to_le_bytes(), scales(low >> 4, 4).to_le_bytes()]
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::split_blocks::<110, 64, 44>(row, main, aux, |block, main, aux| {
        let mut codes = [0; 256];
        unpack_codes(block, &mut codes);
        let codes = codes.map(|code| (code + 4) as u8);
        *main = device::pairs(&codes.map(|code| code & 3));
        let (thirds, scales) = aux.split_at_mut(32);
        for (word, codes) in thirds.as_chunks_mut::<4>().0.iter_mut().zip(codes.as_chunks::<32>().0) {
            let bits = codes.iter().enumerate().fold(0, |word, (j, code)| word | u32::from(code >> 2) << j);
            *word = bits.to_le_bytes();
        }
        let (all, mut low, mut high) = (scale_codes(block), 0u64, 0u32);
        for (sub, scale) in all.as_flattened().iter().enumerate() {
            low |= u64::from(scale & 15) << (4 * sub);
            high |= u32::from(scale >> 4) << (2 * sub);
        }
        scales[..8].copy_from_slice(&low.to_le_bytes());
        scales[8..].copy_from_slice(&high.to_le_bytes());
        [block[108], block[109]]
    })
}
