//! Q8_0: 32 elements in 34 bytes. `x = d * q`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..34 | `q`, i8 |

use super::{f16_at, round, to_f16};

pub(super) fn dequantise(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (q, out) in block[2..].iter().zip(out) {
        *out = f32::from(*q as i8) * d;
    }
}

/// The largest magnitude becomes 127; the rest is rounded in its scale, halves away from zero.
pub(super) fn quantise(x: &[f32; 32]) -> [u8; 34] {
    let d = round::extreme(x).abs() / 127.0;
    let inverse = round::inverse(d);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&to_f16(d).0);
    for (q, x) in block[2..].iter_mut().zip(x) {
        *q = round::nearest_away(x * inverse) as i8 as u8;
    }
    block
}
