//! Weights on the GPU. Every row is split into two streams: aligned codes (`main`, 16-byte
//! elements) and scales (`aux`, 4-byte words). Weights keep their values and, except for the
//! padding of a row, their size. A row is a whole number of *chunks* of 32 columns, padded with
//! zeros. Each type's page says what the streams hold, in these terms:
//!
//! - Nibbles, 16 bytes: byte `j` of a chunk holds column `j` in its low and column `j + 16` in its
//!   high nibble, whatever the order in the file.
//! - High bits: bit `j` of the word is column `j`.
//! - Bit pairs, 8 bytes: bits `2j, 2j + 1` of the first word are column `j`, of the second word
//!   column `16 + j`.
//! - 16-bit scales are stored two per word and bytes four per word, with each row padded to whole
//!   words. A scale `d` at the end of a block is an f16 after all other words of the row.
//! - Digits: digit `n` of the four bytes of a word gives four adjacent columns, digit `n + 1` the
//!   next four. Digit `n` of a byte `b` is `3 (3^n b mod 256) / 256`.
//! - A point is an entry of the type's [code book](DeviceFormat::code_book), which is on the device
//!   once: eight columns, or four for IQ3. Its bits, signs and scales are packed as in the file.
//!
//! Each type's page has its repacking. This file has the sizes of the streams and shared helpers.

use super::{DeviceFormat, FloatType, TensorType, WeightType};
use thermocline_base::error::{Error, Result};

/// F32: `main` has 128 bytes per chunk.
const F32: DeviceFormat =
    DeviceFormat { main_words: 32, wgsl: include_str!("f32.wgsl"), repack: copy, ..DeviceFormat::PLAIN };
/// F16: `main` has pairs of values, 64 bytes per chunk.
const F16: DeviceFormat =
    DeviceFormat { main_words: 16, wgsl: include_str!("f16.wgsl"), repack: copy, ..DeviceFormat::PLAIN };
/// BF16: as F16.
const BF16: DeviceFormat =
    DeviceFormat { main_words: 16, wgsl: include_str!("bf16.wgsl"), repack: copy, ..DeviceFormat::PLAIN };

impl WeightType {
    /// Weight types with integer-product kernels.
    pub const PACKED: [WeightType; packed_types()] = {
        let (mut types, mut len, mut at) = ([WeightType::F32; packed_types()], 0, 0);
        while at < WeightType::ALL.len() {
            if WeightType::ALL[at].device().packed {
                types[len] = WeightType::ALL[at];
                len += 1;
            }
            at += 1;
        }
        types
    };

    /// The encoding on the GPU.
    pub const fn device(self) -> &'static DeviceFormat {
        match self {
            WeightType::Float(FloatType::F32) => &F32,
            WeightType::Float(FloatType::F16) => &F16,
            WeightType::Float(FloatType::BF16) => &BF16,
            WeightType::Blocks(ty) => &ty.format().device,
        }
    }

    /// A row on the GPU is padded to a multiple of this many columns.
    pub const fn block(self) -> usize {
        match self {
            WeightType::Float(_) => 32,
            WeightType::Blocks(ty) => ty.format().len,
        }
    }

    /// Number of 8-column parts of a chunk in 16 bytes of `main`, at most 4. An invocation of
    /// `gemv` takes this many parts at once.
    pub const fn parts(self) -> usize {
        match self.device().main_words {
            ..=4 => 4,
            5..=8 => 2,
            _ => 1,
        }
    }

    /// 16-byte elements of `main` in a row of `cols` columns.
    pub const fn main_len(self, cols: usize) -> usize {
        cols.div_ceil(self.block()) * (self.block() / 32) * self.device().main_words / 4
    }

    /// Words of `aux` in a row of `cols` columns.
    pub const fn aux_len(self, cols: usize) -> usize {
        let DeviceFormat { aux_bytes, row_factor, .. } = self.device();
        *row_factor as usize + (cols.div_ceil(self.block()) * *aux_bytes).div_ceil(4)
    }

    /// Bytes of a row of `cols` columns in both streams.
    pub const fn device_row_bytes(self, cols: usize) -> usize {
        self.main_len(cols) * 16 + self.aux_len(cols) * 4
    }
}

const fn packed_types() -> usize {
    let (mut count, mut at) = (0, 0);
    while at < WeightType::ALL.len() {
        count += WeightType::ALL[at].device().packed as usize;
        at += 1;
    }
    count
}

/// Splits `row` into `main` and `aux`. `row` is whole blocks of `ty`, and its weights are
/// multiplied by `factor`. `main` and `aux` have the lengths [`WeightType::main_len`] and
/// [`WeightType::aux_len`] of [`TensorType::device_type`]. Every byte of both is written.
///
/// # Errors
/// [`Error::Unsupported`] for a factor other than 1 with a type that has no factor.
pub fn repack(ty: TensorType, row: &[u8], factor: f32, main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let device = ty.device_type().device();
    let (first, aux) = aux.split_at_mut(if device.row_factor { 4 } else { 0 });
    if first.is_empty() && factor != 1.0 {
        return Err(Error::unsupported(
            "factor of a matrix on the GPU",
            format!("{factor} ({ty})"),
            "1, or any factor with NVFP4 and I2_S",
        ));
    }
    first.copy_from_slice(&factor.to_le_bytes()[..first.len()]);
    (device.repack)(row, main, aux)
}

/// Copies a row of floats.
pub(super) fn copy(row: &[u8], main: &mut [u8], _: &mut [u8]) -> Result<()> {
    let (values, padding) = main.split_at_mut(row.len());
    values.copy_from_slice(row);
    padding.fill(0);
    Ok(())
}

/// Packs the lower four bits of a chunk's codes into 16 bytes. Byte `j` has code `j` (low) and
/// `j + 16` (high).
pub(super) fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + 16] << 4)
}

/// Packs codes below 4 into two bits each, sixteen to a word.
pub(super) fn pairs<const CODES: usize, const BYTES: usize>(codes: &[u8; CODES]) -> [u8; BYTES] {
    const { assert!(CODES == 4 * BYTES) };
    std::array::from_fn(|at| (0..4).fold(0, |byte, j| byte | codes[4 * at + j] << (2 * j)))
}

/// Repacks blocks to `MAIN` bytes in one stream and `AUX` bytes in the other. `block(bytes, main,
/// aux)` fills in both.
pub(super) fn map_blocks<const BYTES: usize, const MAIN: usize, const AUX: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
    block: impl Fn(&[u8; BYTES], &mut [u8; MAIN], &mut [u8; AUX]),
) -> Result<()> {
    let out = main.as_chunks_mut().0.iter_mut().zip(aux.as_chunks_mut().0);
    row.as_chunks().0.iter().zip(out).for_each(|(bytes, (main, aux))| block(bytes, main, aux));
    Ok(())
}

/// [`map_blocks`] for blocks with an F16 scale, which `block` returns. The scales of a row follow
/// its other bytes.
pub(super) fn split_blocks<const BYTES: usize, const MAIN: usize, const AUX: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
    block: impl Fn(&[u8; BYTES], &mut [u8; MAIN], &mut [u8]) -> [u8; 2],
) -> Result<()> {
    let blocks = row.as_chunks::<BYTES>().0;
    let (aux, scales) = aux.split_at_mut(AUX * blocks.len());
    // The last word of a row's scales may contain only one scale.
    scales[2 * blocks.len()..].fill(0);
    let out = main.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
    for (at, (bytes, (main, scale))) in blocks.iter().zip(out).enumerate() {
        *scale = block(bytes, main, &mut aux[AUX * at..][..AUX]);
    }
    Ok(())
}

/// Splits blocks after their F16 scale into `MAIN` bytes in one stream and `AUX` bytes in the
/// other. All fields, with the scale, are unchanged.
pub(super) fn split_fields<const BYTES: usize, const MAIN: usize, const AUX: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
) -> Result<()> {
    const { assert!(BYTES == 2 + MAIN + AUX) };
    split_blocks::<BYTES, MAIN, AUX>(row, main, aux, |block, main, aux| {
        main.copy_from_slice(&block[2..2 + MAIN]);
        aux.copy_from_slice(&block[2 + MAIN..]);
        [block[0], block[1]]
    })
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::quant::sample::random_weights;

    #[test]
    fn weights_are_as_large_on_the_device_as_in_the_file() {
        for ty in TensorType::WEIGHTS {
            let (file, device) = (ty.row_bytes(4096).unwrap() as u64, ty.device_type().device_row_bytes(4096) as u64);
            assert!((file..=file + file / 100).contains(&device), "{ty}: {device} bytes, {file} in the file");
            assert_eq!(ty.device_type().name(), ty.name());
        }
    }

    #[test]
    fn repack_keeps_the_factor_of_a_type_that_has_one_and_refuses_others() {
        let row = random_weights(TensorType::NVFP4, 192, &mut ChaCha8Rng::seed_from_u64(1));
        let (mut main, mut aux) = (vec![0; 96], vec![0; 16]);
        repack(TensorType::NVFP4, &row, -0.375, &mut main, &mut aux).unwrap();
        assert_eq!(aux[..4], (-0.375_f32).to_le_bytes());
        let row = random_weights(TensorType::Q4_0, 32, &mut ChaCha8Rng::seed_from_u64(1));
        let error = repack(TensorType::Q4_0, &row, 0.5, &mut [0; 16], &mut [0; 4]).unwrap_err().to_string();
        assert!(error.contains("0.5 (Q4_0)"), "{error}");
    }
}
