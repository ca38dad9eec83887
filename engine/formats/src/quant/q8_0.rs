//! Q8_0: 32 elements in 34 bytes. `x = d * q`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..34 | `q`, i8 |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk 32 bytes: codes,
//! four to a word. `aux` has an f16 scale.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType, bits,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_32},
    device, round,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q8_0,
    len: 32,
    bytes: 34,
    grouping: Grouping { len: 32, minima: false, lowest: -128, highest: 127 },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 8,
        aux_bytes: 2,
        wgsl: include_str!("q8_0.wgsl"),
        repack: device::split_fields::<34, 32, 0>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(-0.02, 0.02)),
};

#[inline(always)]
fn unpack(block: &[u8; 34], codes: &mut [i8; 32]) -> (f32, f32) {
    *codes = bits::bytes::<32>(block, 2).map(|q| q as i8);
    (bits::f16_at(block, 0), 0.0)
}

/// Maps the largest magnitude to 127, and rounds the other elements in its scale, halves away from
/// zero.
fn quantise(x: &[f32; 32]) -> [u8; 34] {
    let d = round::extreme(x).abs() / 127.0;
    let inverse = round::inverse(d);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&bits::to_f16(d).0);
    for (q, x) in block[2..].iter_mut().zip(x) {
        *q = round::nearest_away(x * inverse) as i8 as u8;
    }
    block
}
