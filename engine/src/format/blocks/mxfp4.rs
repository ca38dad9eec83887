//! MXFP4 (OCP Microscaling): 32 four-bit floats (E2M1) with one shared power of two, 17 bytes.
//! `x = 2^(e - 128) * VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `e`, a power of two with bias 127 (E8M0) |
//! | 1..17 | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high nibble) |

use super::iq4;

/// Twice what the sixteen codes stand for (so that they are integers).
pub const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn dequantise(block: &[u8; 17], out: &mut [f32; 32]) {
    iq4::look_up(&block[1..], scale(block[0]), &VALUES, out);
}

/// `2^(e - 128)`: half the shared scale, to go with the doubled [`VALUES`].
pub fn scale(e: u8) -> f32 {
    match e {
        // 2^-128 and 2^-127 are subnormal.
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}
