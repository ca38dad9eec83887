//! Q5_1: 32 elements in 24 bytes. `x = d * q + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `m`, F16 |
//! | 4..8 | bit 4 of `q`: bit `j` of a little-endian u32 belongs to element `j` |
//! | 8..24 | bits 0..4 of `q`: byte `j` holds element `j` (low) and `j + 16` (high) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk low nibbles.
//! `aux` has a word of high bits, f16 scale and min.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType, bits,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_32},
    device, round,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q5_1,
    len: 32,
    bytes: 24,
    grouping: Grouping { len: 32, minima: true, lowest: 0, highest: 31 },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 8,
        wgsl: include_str!("q5_1.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| {
        put_f16(block, 0, random(-0.1, 0.1));
        put_f16(block, 2, random(-1.0, 1.0));
    },
};

#[inline(always)]
fn unpack(block: &[u8; 24], codes: &mut [i8; 32]) -> (f32, f32) {
    bits::nibbles(bits::bytes(block, 8), codes, |q| q as i8);
    bits::add_fifth_bits(bits::bytes(block, 4), codes);
    (bits::f16_at(block, 0), bits::f16_at(block, 2))
}

/// Divides the range of the elements into 31 equal steps.
fn quantise(x: &[f32; 32]) -> [u8; 24] {
    let (min, max) = round::range(x);
    let d = (max - min) / 31.0;
    let inverse = round::inverse(d);
    let codes = x.map(|x| (((x - min) * inverse + 0.5) as i32).min(31) as u8);
    let mut block = [0; 24];
    block[..2].copy_from_slice(&bits::to_f16(d).0);
    block[2..4].copy_from_slice(&bits::to_f16(min).0);
    let (fifth, nibbles) = bits::split_fifth_bits(&codes);
    block[4..8].copy_from_slice(&fifth);
    block[8..].copy_from_slice(&nibbles);
    block
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::map_blocks::<24, 16, 8>(row, main, aux, |block, main, aux| {
        aux[..4].copy_from_slice(&block[4..8]);
        aux[4..].copy_from_slice(&block[..4]);
        *main = *bits::bytes(block, 8);
    })
}
