//! Q1_0: the signs of 128 elements in 18 bytes. `x = d` or `-d`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..18 | bit `j` of byte `i` is set where element `8 i + j` is `d` |

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType, WeightType,
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
    device: DeviceFormat { ty: WeightType::Q1_0, repack: device::split_fields::<18, 16, 0> },
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
