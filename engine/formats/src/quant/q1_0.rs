//! Q1_0: the signs of 128 elements in 18 bytes. `x = d` or `-d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..18 | bit `j` of byte `i` is set where element `8 i + j` is `d` |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk a word of signs,
//! set for +. `aux` has per four chunks an f16 scale.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::put_f16,
    bits::{self, f16_at},
    block_format::{quantise_blocks, unpack_chunks},
    device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q1_0,
    len: 128,
    bytes: 18,
    grouping: Grouping { len: 32, minima: false, lowest: -1, highest: 1 },
    unpack: |src, to| unpack_chunks(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 1,
        aux_bytes: 2,
        wgsl: include_str!("q1_0.wgsl"),
        repack: device::split_fields::<18, 16, 0>,
        ..DeviceFormat::PLAIN
    },
    sample: |block, random| put_f16(block, 0, random(-1.0, 1.0)),
};

#[inline(always)]
fn unpack(block: &[u8; 18], codes: &mut [i8; 128], scales: &mut [f32; 4]) {
    *scales = [f16_at(block, 0); 4];
    for (at, code) in codes.iter_mut().enumerate() {
        *code = if block[2 + at / 8] >> (at % 8) & 1 == 1 { 1 } else { -1 };
    }
}

/// Encodes the mean magnitude, which minimises the error, and the signs.
fn quantise(x: &[f32; 128]) -> [u8; 18] {
    let mean = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / 128.0;
    let mut block = [0; 18];
    block[..2].copy_from_slice(&bits::to_f16(mean as f32).0);
    for (at, x) in x.iter().enumerate() {
        block[2 + at / 8] |= u8::from(*x >= 0.0) << (at % 8);
    }
    block
}
