//! MXFP4 (OCP Microscaling): 32 four-bit floats (E2M1) with one shared power of two, 17 bytes.
//! `x = 2^(e - 128) * VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `e`, a power of two with bias 127 (E8M0) |
//! | 1..17 | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high nibble) |

use thermocline_shaders::WeightType;

use super::{BlockFormat, BlockType, DeviceFormat, Grouping, TensorType, bits, block_format::unpack_32, device};

/// Values of the sixteen codes, doubled so that they are integers.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::MXFP4,
    len: 32,
    bytes: 17,
    grouping: Grouping { len: 32, minima: false, wide: false },
    unpack: |src, to| unpack_32(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        ty: WeightType::Q8_0,
        exact: true,
        // Scales down to 2^-24 / 8 are numbers of F16 then.
        repack: |row, main, aux| device::widen_to_q8_0::<8>(BlockType::MXFP4, row, main, aux),
    },
};

#[inline(always)]
fn unpack(block: &[u8; 17], codes: &mut [i8; 32]) -> (f32, f32) {
    bits::nibbles(bits::bytes(block, 1), codes, |q| VALUES[usize::from(q)]);
    (scale(block[0]), 0.0)
}

/// `2^(e - 128)`: half the shared scale, to go with the doubled [`VALUES`].
#[inline(always)]
pub(crate) fn scale(e: u8) -> f32 {
    // 2^-128 and 2^-127 are subnormal.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}
