//! Q4_1: 32 elements in 20 bytes. `x = d * q + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `m`, F16 |
//! | 4..20 | `q`, 4 bits: byte `j` holds element `j` (low) and `j + 16` (high) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk nibbles. `aux`
//! has f16 scale and min.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType, bits,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_32},
    device, round,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q4_1,
    len: 32,
    bytes: 20,
    grouping: Grouping { len: 32, minima: true, lowest: 0, highest: 15 },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 4,
        wgsl: include_str!("q4_1.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| {
        put_f16(block, 0, random(-0.1, 0.1));
        put_f16(block, 2, random(-1.0, 1.0));
    },
};

#[inline(always)]
fn unpack(block: &[u8; 20], codes: &mut [i8; 32]) -> (f32, f32) {
    bits::nibbles(bits::bytes(block, 4), codes, |q| q as i8);
    (bits::f16_at(block, 0), bits::f16_at(block, 2))
}

/// Divides the range of the elements into 15 equal steps.
fn quantise(x: &[f32; 32]) -> [u8; 20] {
    let (min, max) = round::range(x);
    let d = (max - min) / 15.0;
    let inverse = round::inverse(d);
    let code = |x: f32| (((x - min) * inverse + 0.5) as i32).min(15) as u8;
    let mut block = [0; 20];
    block[..2].copy_from_slice(&bits::to_f16(d).0);
    block[2..4].copy_from_slice(&bits::to_f16(min).0);
    for (j, q) in block[4..].iter_mut().enumerate() {
        *q = code(x[j]) | code(x[j + 16]) << 4;
    }
    block
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::map_blocks::<20, 16, 4>(row, main, aux, |block, main, aux| {
        *aux = *bits::bytes(block, 0);
        *main = *bits::bytes(block, 4);
    })
}
