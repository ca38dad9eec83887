//! IQ4_NL: 32 elements in 18 bytes. Four-bit codes select from a table of sixteen unevenly spaced
//! values. `x = d * VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..18 | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high nibble) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk nibbles. `aux`
//! has an f16 scale.

use super::{BlockFormat, DeviceFormat, Grouping, TensorType, bits, bits::put_f16, block_format::unpack_32, device};

/// Values of the sixteen codes.
pub const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ4_NL,
    len: 32,
    bytes: 18,
    grouping: Grouping { len: 32, minima: false, lowest: -127, highest: 113 },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 2,
        wgsl: include_str!("iq4_nl.wgsl"),
        repack: device::split_fields::<18, 16, 0>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(-0.02, 0.02)),
};

#[inline(always)]
fn unpack(block: &[u8; 18], codes: &mut [i8; 32]) -> (f32, f32) {
    bits::nibbles(bits::bytes(block, 2), codes, |q| VALUES[usize::from(q)]);
    (bits::f16_at(block, 0), 0.0)
}
