//! Q4_0: 32 elements in 18 bytes. `x = d * (q - 8)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..18 | `q`, 4 bits: byte `j` holds element `j` (low) and `j + 16` (high) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk nibbles. `aux`
//! has an f16 scale.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType, bits,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_32},
    device, round,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q4_0,
    len: 32,
    bytes: 18,
    grouping: Grouping { len: 32, minima: false, lowest: -8, highest: 7 },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 2,
        wgsl: include_str!("q4_0.wgsl"),
        repack: device::split_fields::<18, 16, 0>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(-0.02, 0.02)),
};

#[inline(always)]
fn unpack(block: &[u8; 18], codes: &mut [i8; 32]) -> (f32, f32) {
    bits::nibbles(bits::bytes(block, 2), codes, |q| q as i8 - 8);
    (bits::f16_at(block, 0), 0.0)
}

/// Maps the element of largest magnitude to exactly -8, and rounds the other elements in its scale.
fn quantise(x: &[f32; 32]) -> [u8; 18] {
    let d = round::extreme(x) / -8.0;
    let inverse = round::inverse(d);
    let code = |x: f32| ((x * inverse + 8.5) as i32).min(15) as u8;
    let mut block = [0; 18];
    block[..2].copy_from_slice(&bits::to_f16(d).0);
    for (j, q) in block[2..].iter_mut().enumerate() {
        *q = code(x[j]) | code(x[j + 16]) << 4;
    }
    block
}
