//! IQ4_NL and IQ4_XS: four-bit codes into a table of sixteen unevenly spaced values ([`VALUES`]).
//!
//! IQ4_NL: 32 elements in 18 bytes, `x = d * VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..18 | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high nibble) |
//!
//! IQ4_XS: 256 elements in 136 bytes, eight sub-blocks of 32, `x = d * (scale - 32) * VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | bits 4..6 of the scales: bits `2s..2s+2` of a little-endian u16 |
//! | 4..8 | bits 0..4 of the scales, two per byte, low nibble first |
//! | 8..136 | `q`: 16 bytes per sub-block, ordered as in IQ4_NL |

use super::f16_at;

/// What the sixteen codes stand for.
pub const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(super) fn dequantise_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    look_up(&block[2..], f16_at(block, 0), &VALUES, out);
}

pub(super) fn dequantise_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (sub, (out, scale)) in out.as_chunks_mut::<32>().0.iter_mut().zip(xs_scales(block)).enumerate() {
        look_up(&block[8 + 16 * sub..][..16], d * f32::from(scale), &VALUES, out);
    }
}

/// The eight scales of an IQ4_XS block, 32 already subtracted.
pub fn xs_scales(block: &[u8; 136]) -> [i8; 8] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    std::array::from_fn(|sub| {
        let low = block[4 + sub / 2] >> (sub % 2 * 4) & 15;
        (low | ((high >> (2 * sub) & 3) as u8) << 4) as i8 - 32
    })
}

/// `out = d * table[q]` for sixteen bytes of nibbles.
pub(super) fn look_up(codes: &[u8], d: f32, table: &[i8; 16], out: &mut [f32; 32]) {
    // Sixteen products instead of thirty-two.
    let values = table.map(|value| d * f32::from(value));
    let (low, high) = out.split_at_mut(16);
    for ((q, low), high) in codes.iter().zip(low).zip(high) {
        *low = values[usize::from(q & 15)];
        *high = values[usize::from(q >> 4)];
    }
}
