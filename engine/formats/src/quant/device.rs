//! Weights on the GPU. Every row is split into the two streams of a [`WeightType`]: aligned codes
//! (`main`) and scales (`aux`). Weights keep their values and, except for the padding of a row,
//! their size. For types with a code book the streams have the indices of points. The book itself
//! is on the device once.
//!
//! Each type's file has its repacking. This file has the dispatch and shared helpers.

use thermocline_shaders::WeightType;

use super::{Encoding, FloatType, TensorType};
use thermocline_base::error::{Error, Result};

/// Encoding on the GPU of weights with type `ty` in their file. (Integers and F64, which no matrix
/// uses, count as F32.)
pub const fn device_type(ty: TensorType) -> WeightType {
    match ty.encoding() {
        Some(Encoding::Blocks(ty)) => ty.format().device.ty,
        Some(Encoding::Float(FloatType::F16)) => WeightType::F16,
        Some(Encoding::Float(FloatType::BF16)) => WeightType::BF16,
        Some(Encoding::Float(FloatType::F32)) | None => WeightType::F32,
    }
}

/// Bytes on the GPU of a row of `cols` columns, for weights with type `ty` in their file.
pub fn device_row_bytes(ty: TensorType, cols: usize) -> u64 {
    device_type(ty).row_bytes(cols) as u64
}

/// Splits `row` into `main` and `aux`. `row` is whole blocks of `ty`, and its weights are
/// multiplied by `factor`. `main` and `aux` have the lengths [`WeightType::main_len`] and
/// [`WeightType::aux_len`] of [`device_type`]. Every byte of both is written.
///
/// # Errors
/// [`Error::Unsupported`] for a factor other than 1 with a type that has no factor.
pub fn repack(ty: TensorType, row: &[u8], factor: f32, main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let device = device_type(ty);
    let (first, aux) = aux.split_at_mut(if device.has_row_factor() { 4 } else { 0 });
    if first.is_empty() && factor != 1.0 {
        return Err(Error::unsupported(
            "factor of a matrix on the GPU",
            format!("{factor} ({ty})"),
            "1, or any of NVFP4 and I2_S",
        ));
    }
    first.copy_from_slice(&factor.to_le_bytes()[..first.len()]);
    match ty.encoding() {
        Some(Encoding::Blocks(ty)) => (ty.format().device.repack)(row, main, aux),
        Some(Encoding::Float(_)) | None => {
            let (values, padding) = main.split_at_mut(row.len());
            values.copy_from_slice(row);
            padding.fill(0);
            Ok(())
        }
    }
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
    use thermocline_shaders::WeightRow;

    use super::*;
    use crate::quant::{
        dequantise,
        sample::{WEIGHTS, random_weights},
    };

    /// Streams of a row, written over non-zero bytes.
    fn repacked(ty: TensorType, row: &[u8], cols: usize) -> (Vec<u32>, Vec<u32>) {
        let device = device_type(ty);
        let (mut main, mut aux) = (vec![0xa5; device.main_len(cols) * 16], vec![0xa5; device.aux_len(cols) * 4]);
        repack(ty, row, 1.0, &mut main, &mut aux).unwrap();
        let words = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        (words(main), words(aux))
    }

    #[test]
    fn repacked_rows_decode_to_the_values_of_the_file() {
        for ty in WEIGHTS {
            // An odd number of blocks, so that one word of scales is half empty.
            let cols = if ty.block_len() == 1 { 45 } else { ty.block_len() * 3 };
            for seed in 0..5 {
                let row = random_weights(ty, cols, &mut ChaCha8Rng::seed_from_u64(seed));
                let mut expected = vec![0.0; cols];
                dequantise(ty, &row, &mut expected);
                let (main, aux) = repacked(ty, &row, cols);
                let row = WeightRow { ty: device_type(ty), main: &main, aux: &aux };
                for (col, value) in expected.iter().enumerate() {
                    let (got, value) = (row.value(col), f64::from(*value));
                    // `dequantise` rounds products to f32.
                    let most = 3e-7 * (value.abs() + 1e-3);
                    assert!((got - value).abs() <= most, "{ty} seed {seed} column {col}: {got}, expected {value}");
                }
                let padded = cols.next_multiple_of(row.ty.block());
                assert!((cols..padded).all(|col| row.value(col) == 0.0), "{ty}: padding");
            }
        }
    }

    #[test]
    fn weights_are_as_large_on_the_device_as_in_the_file() {
        for ty in WEIGHTS {
            let (file, device) = (ty.row_bytes(4096).unwrap() as u64, device_row_bytes(ty, 4096));
            assert!((file..=file + file / 100).contains(&device), "{ty}: {device} bytes, {file} in the file");
            assert_eq!(device_type(ty).name(), ty.name());
        }
    }

    #[test]
    fn repack_keeps_the_factor_of_a_type_that_has_one_and_refuses_others() {
        let row = random_weights(TensorType::NVFP4, 192, &mut ChaCha8Rng::seed_from_u64(1));
        let decoded = |factor: f32| {
            let (mut main, mut aux) = (vec![0; 96], vec![0; 16]);
            repack(TensorType::NVFP4, &row, factor, &mut main, &mut aux).unwrap();
            let [main, aux] = [main, aux].map(|bytes| bytemuck::pod_collect_to_vec::<u8, u32>(&bytes));
            let row = WeightRow { ty: WeightType::NVFP4, main: &main, aux: &aux };
            (0..192).map(|col| row.value(col)).collect::<Vec<_>>()
        };
        let (plain, scaled) = (decoded(1.0), decoded(-0.375));
        assert!(plain.iter().any(|value| *value != 0.0));
        assert!(plain.iter().zip(&scaled).all(|(plain, scaled)| *scaled == -0.375 * plain));
        let row = random_weights(TensorType::Q4_0, 32, &mut ChaCha8Rng::seed_from_u64(1));
        let error = repack(TensorType::Q4_0, &row, 0.5, &mut [0; 16], &mut [0; 4]).unwrap_err().to_string();
        assert!(error.contains("0.5 (Q4_0)"), "{error}");
    }
}
