//! MXFP4 (OCP Microscaling): 32 four-bit floats (E2M1) with one shared power of two, 17 bytes.
//! `x = 2^(e - 128) * VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `e`, a power of two with bias 127 (E8M0) |
//! | 1..17 | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high nibble) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk nibbles. `aux`
//! has a byte `e`, the scale being `2^(e - 128)` (0 for `e` below 2).

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType, bits,
    block_format::{quantise_blocks, unpack_32},
    round,
};

/// Values of the sixteen codes, doubled to be integers.
pub const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::MXFP4,
    len: 32,
    bytes: 17,
    grouping: Grouping { len: 32, minima: false, lowest: -12, highest: 12 },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 1,
        wgsl: include_str!("mxfp4.wgsl"),
        repack,
        ..DeviceFormat::PLAIN
    },
    sample: |block, random| block[0] = random(120.0, 128.0) as u8,
};

#[inline(always)]
fn unpack(block: &[u8; 17], codes: &mut [i8; 32]) -> (f32, f32) {
    bits::nibbles(bits::bytes(block, 1), codes, |q| VALUES[usize::from(q)]);
    (scale(block[0]), 0.0)
}

/// `2^(e - 128)`: half the shared scale, to match the doubled [`VALUES`].
#[inline(always)]
pub fn scale(e: u8) -> f32 {
    // 2^-128 and 2^-127 are subnormal.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Copies codes unchanged, and packs scales four to a word.
fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    aux.fill(0);
    let blocks = row.as_chunks::<17>().0.iter().zip(main.as_chunks_mut::<16>().0).zip(aux);
    for ((block, codes), scale) in blocks {
        *scale = block[0];
        codes.copy_from_slice(&block[1..]);
    }
    Ok(())
}

/// Encodes `x` under the scale with byte `e`. Returns the block and the sum of squared errors.
fn encode(x: &[f32; 32], e: u8) -> ([u8; 17], f32) {
    let (scale, mut block, mut error) = (scale(e), [0; 17], 0.0);
    block[0] = e;
    for (at, x) in x.iter().enumerate() {
        let wanted = x.abs() / scale;
        // The first eight values ascend. Halfway between two values, the larger is chosen.
        let above = |pair: &[i8]| 2.0 * wanted >= f32::from(pair[0]) + f32::from(pair[1]);
        let magnitude = VALUES[..8].windows(2).filter(|pair| above(pair)).count();
        let off = wanted - f32::from(VALUES[magnitude]);
        error += off * scale * off * scale;
        let code = magnitude as u8 | if *x < 0.0 { 8 } else { 0 };
        block[1 + at % 16] |= code << (4 * (at / 16));
    }
    (block, error)
}

/// Tries two scales and keeps the block with the smaller error. Under the finer scale the largest
/// magnitude is at most 7 steps, and codes reach 6. The coarser scale is twice as large.
fn quantise(x: &[f32; 32]) -> [u8; 17] {
    let largest = round::extreme(x).abs();
    if largest == 0.0 {
        return [0; 17];
    }
    let power = (f64::from(largest) / 7.0).log2().ceil();
    let finer = (power + 127.0).clamp(0.0, 253.0) as u8;
    let [(fine, fine_error), (coarse, coarse_error)] = [encode(x, finer), encode(x, finer + 1)];
    if fine_error <= coarse_error { fine } else { coarse }
}
