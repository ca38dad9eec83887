//! TQ2_0: 256 weights of -1, 0 or 1 in 66 bytes. `x = d * (q - 1)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..64 | `q`, 2 bits: each half of 128 elements has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 64..66 | `d`, F16 |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk 16 codes in a
//! word. `aux` has per block only d.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::put_f16,
    bits::{self, f16_at},
    block_format::{quantise_blocks, unpack_256},
    device, round,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::TQ2_0,
    len: 256,
    bytes: 66,
    grouping: Grouping { len: 32, minima: false, lowest: -1, highest: 2 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 2,
        wgsl: include_str!("tq2_0.wgsl"),
        repack: |row, main, aux| {
            device::split_blocks::<66, 64, 0>(row, main, aux, |block, main, _| {
                let mut codes = [0; 256];
                unpack(block, &mut codes, &mut [0.0; 8], &mut [0.0; 8]);
                *main = device::pairs(&codes.map(|code| (code + 1) as u8));
                [block[64], block[65]]
            })
        },
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 64, random(-1.0, 1.0)),
};

#[inline(always)]
fn unpack(block: &[u8; 66], codes: &mut [i8; 256], scales: &mut [f32; 8], _: &mut [f32; 8]) {
    *scales = [f16_at(block, 64); 8];
    for (i, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, byte) in codes.iter_mut().zip(&block[i / 4 * 32..]) {
            *code = (byte >> (2 * (i % 4)) & 3) as i8 - 1;
        }
    }
}

/// Returns the largest magnitude as F16. Each element becomes the nearest of -1, 0 and 1 times it,
/// plus one.
pub(super) fn ternary(x: &[f32; 256]) -> ([u8; 2], [u8; 256]) {
    let largest = round::extreme(x).abs();
    let inverse = round::inverse(largest);
    (bits::to_f16(largest).0, x.map(|x| (round::nearest_away(x * inverse) + 1) as u8))
}

fn quantise(x: &[f32; 256]) -> [u8; 66] {
    let (d, codes) = ternary(x);
    let mut block = [0; 66];
    for (element, code) in codes.iter().enumerate() {
        block[element / 128 * 32 + element % 32] |= code << (2 * (element % 128 / 32));
    }
    block[64..].copy_from_slice(&d);
    block
}
