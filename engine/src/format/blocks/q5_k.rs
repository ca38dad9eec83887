//! Q5_K: 256 elements in 176 bytes, eight sub-blocks of 32. `x = d * scale * q - dmin * min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `dmin`, F16 |
//! | 4..16 | scales and mins, 6 bits, see [`k_scales`] |
//! | 16..48 | bit 4 of `q`: bit `b` of byte `l` belongs to element `32 b + l` |
//! | 48..176 | bits 0..4 of `q`: each group of 64 elements has 32 bytes, byte `l` holds element `l` (low) and `l + 32` (high) |

use super::{f16_at, fit, k_scales};

pub(super) fn dequantise(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, mins) = k_scales::of_block(block);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[sub]);
        let min = dmin * f32::from(mins[sub]);
        let low = &block[48 + sub / 2 * 32..][..32];
        for ((low, high), out) in low.iter().zip(&block[16..48]).zip(out) {
            let q = low >> (sub % 2 * 4) & 15 | (high >> sub & 1) << 4;
            *out = scale * f32::from(q) - min;
        }
    }
}

pub(super) fn quantise(x: &[f32; 256]) -> [u8; 176] {
    let (header, codes) = fit::affine_block(x, 31);
    let mut block = [0; 176];
    block[..16].copy_from_slice(&header);
    for (l, byte) in block[16..48].iter_mut().enumerate() {
        *byte = (0..8).fold(0, |bits, sub| bits | (codes[32 * sub + l] >> 4) << sub);
    }
    for (group, bytes) in block[48..].as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[64 * group + l] & 15 | (codes[64 * group + l + 32] & 15) << 4;
        }
    }
    block
}
