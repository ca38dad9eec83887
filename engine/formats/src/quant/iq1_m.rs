//! IQ1_M: 256 elements in 56 bytes, sixteen sub-blocks of 16. `x = d * (2 scale + 1) * (value +
//! shift)` as in IQ1_S, with a shift for every eight elements.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | bits 0..8 of the point number of every eight elements |
//! | 32..48 | per eight elements a nibble, low one first: bits 8..11 of the point number, and a bit that is set where the shift is down |
//! | 48..56 | four u16, each with three bits of scale for four sub-blocks; the upper nibbles are `d`, F16, the first its lowest |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk a byte per point.
//! `aux` has per block 6 words: two bytes per chunk, high bits, shifts; scales and d.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::{bytes, f16_to_f32},
    block_format::unpack_256,
    code_books::{self, IQ1 as POINTS},
    device::map_blocks,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ1_M,
    len: 256,
    bytes: 56,
    grouping: Grouping { len: 16, minima: false, lowest: -9, highest: 9 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 1,
        aux_bytes: 24,
        code_book: Some(&code_books::IQ1_WORDS),
        wgsl: include_str!("iq1_m.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| {
        let bits = half::f16::from_f32(random(0.01, 0.1)).to_bits();
        for (at, byte) in block[49..].iter_mut().step_by(2).enumerate() {
            *byte = *byte & 15 | ((bits >> (4 * at) & 15) << 4) as u8;
        }
    },
};

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    map_blocks::<56, 32, 24>(row, main, aux, |block, main, aux| {
        main.copy_from_slice(&block[..32]);
        aux.copy_from_slice(&block[32..]);
    })
}

#[inline(always)]
fn unpack(block: &[u8; 56], codes: &mut [i8; 256], scales: &mut [f32; 16], _: &mut [f32; 16]) {
    *scales = unpack_scales(block);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (point, shift) = point_and_shift(block, i);
        *codes = POINTS[point].map(|value| value + shift);
    }
}

/// Index of the point, below 2048, and shift in eighths, 1 or -1, of elements `8 i..8 i + 8`.
#[inline(always)]
pub fn point_and_shift(block: &[u8; 56], i: usize) -> (usize, i8) {
    let high = block[32 + i / 2] >> (4 * (i % 2));
    (usize::from(block[i]) | usize::from(high & 7) << 8, if high & 8 == 0 { 1 } else { -1 })
}

/// `d * (2 scale + 1) / 8` of the sixteen sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 56]) -> [f32; 16] {
    let words: [u16; 4] = std::array::from_fn(|at| u16::from_le_bytes(*bytes(block, 48 + 2 * at)));
    let d = (0..4).fold(0, |d, at| d | words[at] >> 12 << (4 * at));
    let d = f16_to_f32(d.to_le_bytes()) * 0.125;
    std::array::from_fn(|sub| d * f32::from(2 * (words[sub / 4] >> (3 * (sub % 4)) & 7) + 1))
}
