//! I2_S, the type of Microsoft's BitNet files: 128 weights of -1, 0 or 1 in 32 bytes. `x = factor *
//! (q - 1)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | `q`, 2 bits: bits `6 - 2s .. 8 - 2s` of byte `l` belong to element `32 s + l` |
//!
//! The factor belongs to the tensor. It is an F32 number after the last block, with 28 bytes of
//! padding ([`Matrix::factor`](crate::format::Matrix::factor)). Files made on ARM use blocks of 64
//! under the same type id, which cannot be distinguished. Published files have the layout above.
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk 16 codes in a
//! word. `aux` has a row's factor in F32.

use super::{BlockFormat, DeviceFormat, Grouping, TensorType, block_format::unpack_chunks, device};
use thermocline_base::error::{Error, Result};

/// Bytes after the blocks of a tensor.
pub(super) const TRAILER: usize = 32;

/// Smaller magnitudes become 0.
const SMALLEST: f32 = 1e-6;

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::I2_S,
    len: 128,
    bytes: 32,
    grouping: Grouping { len: 32, minima: false, lowest: -1, highest: 2 },
    unpack: |src, to| unpack_chunks(src, to, unpack),
    // Rows are not independent: see `encode_i2_s`.
    quantise: None,
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 0,
        row_factor: true,
        wgsl: include_str!("i2_s.wgsl"),
        repack: |row, main, aux| {
            debug_assert!(aux.is_empty(), "the factor is written for all types that have one");
            let out = main.as_chunks_mut::<32>().0;
            row.as_chunks().0.iter().zip(out).for_each(|(block, main)| *main = device::pairs(&codes(block)));
            Ok(())
        },
        ..DeviceFormat::PACKED
    },
    sample: |_, _| (),
};

/// Codes 0, 1 and 2 of a block. Code 3 is never written.
#[inline(always)]
fn codes(block: &[u8; 32]) -> [u8; 128] {
    std::array::from_fn(|at| block[at % 32] >> (6 - 2 * (at / 32)) & 3)
}

#[inline(always)]
fn unpack(block: &[u8; 32], to: &mut [i8; 128], scales: &mut [f32; 4]) {
    *scales = [1.0; 4];
    *to = codes(block).map(|code| code as i8 - 1);
}

/// Encodes a whole tensor, whose weights have one magnitude and a sign, or are zero. Returns
/// blocks, factor and padding. The factor is the largest magnitude.
///
/// # Errors
/// [`Error::Invalid`] if the length is not a whole number of blocks, or a number is not finite.
pub fn encode_i2_s(weights: &[f32]) -> Result<Vec<u8>> {
    let (blocks, []) = weights.as_chunks::<128>() else {
        return Err(Error::invalid("elements of a tensor", "a multiple of 128 (I2_S)", weights.len()));
    };
    if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
        return Err(Error::invalid("weights", "finite numbers (I2_S)", format!("{} at element {at}", weights[at])));
    }
    let mut bytes = Vec::with_capacity(weights.len() / 4 + TRAILER);
    for block in blocks {
        let code = |weight: f32| if weight.abs() < SMALLEST { 1 } else { u8::from(weight > 0.0) * 2 };
        bytes.extend((0..32).map(|l| (0..4).fold(0, |byte, s| byte << 2 | code(block[32 * s + l]))));
    }
    let factor = weights.iter().fold(0.0f32, |largest, weight| largest.max(weight.abs()));
    bytes.extend(factor.to_le_bytes());
    bytes.resize(weights.len() / 4 + TRAILER, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encode_i2_s_refuses_lengths_and_numbers_beyond_the_type() {
        assert!(encode_i2_s(&[0.0; 64]).unwrap_err().to_string().contains("multiple of 128"));
        let mut weights = [0.5; 256];
        weights[200] = f32::NAN;
        assert!(encode_i2_s(&weights).unwrap_err().to_string().contains("element 200"));
        assert!(encode_i2_s(&[]).unwrap().len() == TRAILER);
    }
}
