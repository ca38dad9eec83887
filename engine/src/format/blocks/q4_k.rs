//! Q4_K: 256 elements in 144 bytes, eight sub-blocks of 32. `x = d * scale * q - dmin * min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `dmin`, F16 |
//! | 4..16 | scales and mins, 6 bits, see [`k_scales`] |
//! | 16..144 | `q`, 4 bits: each group of 64 elements has 32 bytes, byte `l` holds element `l` (low) and `l + 32` (high) |

use super::{f16_at, fit, k_scales};

pub(super) fn dequantise(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, mins) = k_scales::of_block(block);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[sub]);
        let min = dmin * f32::from(mins[sub]);
        let codes = &block[16 + sub / 2 * 32..][..32];
        for (q, out) in codes.iter().zip(out) {
            *out = scale * f32::from(q >> (sub % 2 * 4) & 15) - min;
        }
    }
}

pub(super) fn quantise(x: &[f32; 256]) -> [u8; 144] {
    let (header, codes) = fit::affine_block(x, 15);
    let mut block = [0; 144];
    block[..16].copy_from_slice(&header);
    for (group, bytes) in block[16..].as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[64 * group + l] | codes[64 * group + l + 32] << 4;
        }
    }
    block
}
