//! Q5_1: 32 elements in 24 bytes. `x = d * q + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `m`, F16 |
//! | 4..8 | bit 4 of `q`: bit `j` of a little-endian u32 belongs to element `j` |
//! | 8..24 | bits 0..4 of `q`: byte `j` holds element `j` (low) and `j + 16` (high) |

use super::{f16_at, q5_0, round, to_f16};

pub(super) fn dequantise(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for j in 0..16 {
        let q = u32::from(block[8 + j]);
        let low = q & 15 | (fifth >> j & 1) << 4;
        let high = q >> 4 | (fifth >> (j + 16) & 1) << 4;
        out[j] = low as f32 * d + m;
        out[j + 16] = high as f32 * d + m;
    }
}

/// The range of the elements is cut into 31 equal steps.
pub(super) fn quantise(x: &[f32; 32]) -> [u8; 24] {
    let (min, max) = round::range(x);
    let d = (max - min) / 31.0;
    let inverse = round::inverse(d);
    let codes = x.map(|x| (((x - min) * inverse + 0.5) as i32).min(31) as u8);
    let mut block = [0; 24];
    block[..2].copy_from_slice(&to_f16(d).0);
    block[2..4].copy_from_slice(&to_f16(min).0);
    let (fifth, nibbles) = q5_0::split(&codes);
    block[4..8].copy_from_slice(&fifth);
    block[8..].copy_from_slice(&nibbles);
    block
}
