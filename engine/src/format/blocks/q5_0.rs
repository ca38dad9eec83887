//! Q5_0: 32 elements in 22 bytes. `x = d * (q - 16)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..6 | bit 4 of `q`: bit `j` of a little-endian u32 belongs to element `j` |
//! | 6..22 | bits 0..4 of `q`: byte `j` holds element `j` (low) and `j + 16` (high) |

use super::{f16_at, round, to_f16};

pub(super) fn dequantise(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for j in 0..16 {
        let q = u32::from(block[6 + j]);
        let low = q & 15 | (fifth >> j & 1) << 4;
        let high = q >> 4 | (fifth >> (j + 16) & 1) << 4;
        out[j] = (low as i32 - 16) as f32 * d;
        out[j + 16] = (high as i32 - 16) as f32 * d;
    }
}

/// The element of largest magnitude becomes -16 exactly; the rest is rounded in its scale.
pub(super) fn quantise(x: &[f32; 32]) -> [u8; 22] {
    let d = round::extreme(x) / -16.0;
    let inverse = round::inverse(d);
    let codes = x.map(|x| ((x * inverse + 16.5) as i32).min(31) as u8);
    let mut block = [0; 22];
    block[..2].copy_from_slice(&to_f16(d).0);
    let (fifth, nibbles) = split(&codes);
    block[2..6].copy_from_slice(&fifth);
    block[6..].copy_from_slice(&nibbles);
    block
}

/// Five-bit codes as their top bits and their nibbles, as Q5_0 and Q5_1 store them.
pub(super) fn split(codes: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let fifth = codes.iter().enumerate().fold(0u32, |bits, (j, q)| bits | u32::from(q >> 4 & 1) << j);
    (fifth.to_le_bytes(), std::array::from_fn(|j| codes[j] & 15 | (codes[j + 16] & 15) << 4))
}
