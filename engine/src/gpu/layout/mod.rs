//! How weights of a file come to lie on the device: each row is taken apart into the two streams of a [`WeightType`], one of
//! aligned codes and one of scales. Types without a kernel of their own are widened to one that has, exactly where
//! [`device_type`] says so:
//!
//! | in the file | on the device | loss |
//! |---|---|---|
//! | Q5_0, IQ4_NL | Q8_0 | none: their codes are small integers under one scale |
//! | MXFP4 | Q8_0 | none while the scale is within F16 |
//! | IQ4_XS | Q8_0 | the scale of a chunk is rounded to F16: at most 2^-11 of a weight |
//! | Q3_K | Q6_K | none: the same two scales, codes shorter |
//! | Q4_1, Q5_1, Q2_K | Q8_0 | quantised again: at most 1/254 of the chunk's largest weight, a fraction of what their own coarse steps lose |

mod floats;
mod k;
mod q4_0;
mod q6_k;
mod q8_0;

#[cfg(test)]
pub(super) mod tests;

use thermocline_shaders::WeightType;

use crate::{error::Result, format::TensorType};

/// Encoding on the device of weights that have `ty` in their file. (Integers and F64, which no matrix has, count as F32.)
pub const fn device_type(ty: TensorType) -> WeightType {
    use TensorType::*;
    match ty {
        F32 | F64 | I8 | I16 | I32 | I64 => WeightType::F32,
        F16 => WeightType::F16,
        BF16 => WeightType::BF16,
        Q4_0 => WeightType::Q4_0,
        Q4_K => WeightType::Q4_K,
        Q5_K => WeightType::Q5_K,
        Q3_K | Q6_K => WeightType::Q6_K,
        Q8_0 | Q4_1 | Q5_0 | Q5_1 | Q2_K | IQ4_NL | IQ4_XS | MXFP4 => WeightType::Q8_0,
    }
}

/// Whether a matrix of `ty` is the same on the device, but for how it lies there.
pub const fn is_exact(ty: TensorType) -> bool {
    !matches!(ty, TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q2_K | TensorType::IQ4_XS)
}

/// Takes `row`, whole blocks of `ty`, apart into `main` and `aux`, which are as long as
/// [`WeightType::main_len`] and [`WeightType::aux_len`] of [`device_type`] say; all of both is written.
///
/// # Errors
/// [`crate::Error::Invalid`] for a scale that the device's type cannot hold.
pub fn repack(ty: TensorType, row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    use TensorType::*;
    match ty {
        F32 | F16 | BF16 | F64 | I8 | I16 | I32 | I64 => floats::copy(row, main),
        Q4_0 => q4_0::repack(row, main, aux),
        Q8_0 => q8_0::repack(row, main, aux),
        Q5_0 => q8_0::of_q5_0(row, main, aux),
        IQ4_NL => q8_0::of_iq4_nl(row, main, aux),
        IQ4_XS => q8_0::of_iq4_xs(row, main, aux)?,
        MXFP4 => q8_0::of_mxfp4(row, main, aux)?,
        Q4_1 | Q5_1 | Q2_K => q8_0::requantise(ty, row, main, aux)?,
        Q4_K => k::repack_q4(row, main, aux),
        Q5_K => k::repack_q5(row, main, aux),
        Q6_K => q6_k::repack(row, main, aux),
        Q3_K => q6_k::of_q3_k(row, main, aux),
    }
    Ok(())
}

/// Codes of a chunk, below 16 in their lower four bits, as 16 bytes: byte `j` holds `j` (low) and `j + 16` (high).
fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + 16] << 4)
}
