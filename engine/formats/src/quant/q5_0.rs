//! Q5_0: 32 elements in 22 bytes. `x = d * (q - 16)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..6 | bit 4 of `q`: bit `j` of a little-endian u32 belongs to element `j` |
//! | 6..22 | bits 0..4 of `q`: byte `j` holds element `j` (low) and `j + 16` (high) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk low nibbles.
//! `aux` has a row's words of high bits, one per chunk, then its f16 scales.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType, bits,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_32},
    device, round,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q5_0,
    len: 32,
    bytes: 22,
    grouping: Grouping { len: 32, minima: false, lowest: -16, highest: 15 },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 6,
        wgsl: include_str!("q5_0.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(-0.02, 0.02)),
};

#[inline(always)]
fn unpack(block: &[u8; 22], codes: &mut [i8; 32]) -> (f32, f32) {
    bits::nibbles(bits::bytes(block, 6), codes, |q| q as i8 - 16);
    bits::add_fifth_bits(bits::bytes(block, 2), codes);
    (bits::f16_at(block, 0), 0.0)
}

/// Maps the element of largest magnitude to exactly -16, and rounds the other elements in its
/// scale.
fn quantise(x: &[f32; 32]) -> [u8; 22] {
    let d = round::extreme(x) / -16.0;
    let inverse = round::inverse(d);
    let codes = x.map(|x| ((x * inverse + 16.5) as i32).min(31) as u8);
    let mut block = [0; 22];
    block[..2].copy_from_slice(&bits::to_f16(d).0);
    let (fifth, nibbles) = bits::split_fifth_bits(&codes);
    block[2..6].copy_from_slice(&fifth);
    block[6..].copy_from_slice(&nibbles);
    block
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::split_blocks::<22, 16, 4>(row, main, aux, |block, main, aux| {
        aux.copy_from_slice(&block[2..6]);
        *main = *bits::bytes(block, 6);
        *bits::bytes(block, 0)
    })
}
