//! Q4_1: 32 elements in 20 bytes. `x = d * q + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `m`, F16 |
//! | 4..20 | `q`, 4 bits: byte `j` holds element `j` (low) and `j + 16` (high) |

use super::{f16_at, round, to_f16};

pub(super) fn dequantise(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let (low, high) = out.split_at_mut(16);
    for ((q, low), high) in block[4..].iter().zip(low).zip(high) {
        *low = f32::from(q & 15) * d + m;
        *high = f32::from(q >> 4) * d + m;
    }
}

/// The range of the elements is cut into 15 equal steps.
pub(super) fn quantise(x: &[f32; 32]) -> [u8; 20] {
    let (min, max) = round::range(x);
    let d = (max - min) / 15.0;
    let inverse = round::inverse(d);
    let code = |x: f32| (((x - min) * inverse + 0.5) as i32).min(15) as u8;
    let mut block = [0; 20];
    block[..2].copy_from_slice(&to_f16(d).0);
    block[2..4].copy_from_slice(&to_f16(min).0);
    for (j, q) in block[4..].iter_mut().enumerate() {
        *q = code(x[j]) | code(x[j + 16]) << 4;
    }
    block
}
