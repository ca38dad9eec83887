//! Q2_K: 256 elements in 84 bytes, sixteen sub-blocks of 16. `x = d * scale * q - dmin * min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | per sub-block: scale (low nibble) and min (high nibble) |
//! | 16..80 | `q`, 2 bits: each half of 128 elements has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 80..82 | `d`, F16 |
//! | 82..84 | `dmin`, F16 |

use super::f16_at;

pub(super) fn dequantise(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[sub] & 15);
        let min = dmin * f32::from(block[sub] >> 4);
        let (half, shift, start) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let codes = &block[16 + half * 32 + start..][..16];
        for (q, out) in codes.iter().zip(out) {
            *out = scale * f32::from(q >> shift & 3) - min;
        }
    }
}
