//! Q4_0: 32 elements in 18 bytes. `x = d * (q - 8)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..18 | `q`, 4 bits: byte `j` holds element `j` (low) and `j + 16` (high) |

use super::{f16_at, round, to_f16};

pub(super) fn dequantise(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((q, low), high) in block[2..].iter().zip(low).zip(high) {
        *low = (i32::from(q & 15) - 8) as f32 * d;
        *high = (i32::from(q >> 4) - 8) as f32 * d;
    }
}

/// The element of largest magnitude becomes -8 exactly; the rest is rounded in its scale.
pub(super) fn quantise(x: &[f32; 32]) -> [u8; 18] {
    let d = round::extreme(x) / -8.0;
    let inverse = round::inverse(d);
    let code = |x: f32| ((x * inverse + 8.5) as i32).min(15) as u8;
    let mut block = [0; 18];
    block[..2].copy_from_slice(&to_f16(d).0);
    for (j, q) in block[2..].iter_mut().enumerate() {
        *q = code(x[j]) | code(x[j + 16]) << 4;
    }
    block
}
