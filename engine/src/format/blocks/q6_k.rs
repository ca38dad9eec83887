//! Q6_K: 256 elements in 210 bytes, sixteen sub-blocks of 16. `x = d * scale * (q - 32)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | bits 0..4 of `q`: each half of 128 elements has 64 bytes; nibble `n` of byte `l` belongs to element `64 n + l` |
//! | 128..192 | bits 4..6 of `q`: each half has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 192..208 | scales, i8 |
//! | 208..210 | `d`, F16 |

use super::{f16_at, fit};

pub(super) fn dequantise(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + sub] as i8);
        let (half, within) = (sub / 8, sub % 8 * 16);
        let low = &block[64 * half + within % 64..][..16];
        let high = &block[128 + 32 * half + within % 32..][..16];
        let (nibble, pair) = (within / 64 * 4, within / 32 * 2);
        for ((low, high), out) in low.iter().zip(high).zip(out) {
            let q = low >> nibble & 15 | (high >> pair & 3) << 4;
            *out = scale * f32::from(q as i8 - 32);
        }
    }
}

pub(super) fn quantise(x: &[f32; 256]) -> [u8; 210] {
    let (d, scales, codes) = fit::symmetric_block(x);
    let mut block = [0; 210];
    for half in 0..2 {
        let codes = &codes[128 * half..][..128];
        for l in 0..64 {
            block[64 * half + l] = codes[l] & 15 | (codes[l + 64] & 15) << 4;
        }
        for l in 0..32 {
            block[128 + 32 * half + l] = (0..4).fold(0, |bits, s| bits | (codes[32 * s + l] >> 4) << (2 * s));
        }
    }
    block[192..208].copy_from_slice(&scales.map(|scale| scale as u8));
    block[208..].copy_from_slice(&d);
    block
}
