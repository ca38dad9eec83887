//! Weights on the GPU: every row is split into the two streams of a [`WeightType`], one of aligned codes (`main`) and one of
//! scales (`aux`). Weights keep their values and, but for the padding of a row, their size. The types of code books are widened:
//!
//! | in the file | on the device | loss |
//! |---|---|---|
//! | IQ1_S, IQ2_XXS, IQ3_XXS, IQ3_S | Q8_0, of 8.5 bits | the scale of a chunk is rounded to F16: at most 2^-11 of a weight |
//! | IQ1_M, IQ2_XS, IQ2_S | Q8_0, of 8.5 bits | quantised again: at most 1/254 of the chunk's largest weight, a fraction of what their own coarse steps lose |
//!
//! They are widened because a table of 128 to 1024 words, which a kernel needs at every place where it decodes
//! weights, makes it very slow to compile where drivers inline it (llvmpipe).
//!
//! Each type's file has its repacking; this file has the dispatch and what several of them are made of.

use half::f16;
use thermocline_shaders::WeightType;

use super::{BlockType, Encoding, FloatType, TensorType, UnpackedMut, dequantise, quantise};
use crate::error::{Error, Result};

/// Encoding on the GPU of weights that have `ty` in their file. (Integers and F64, which no matrix has, count as F32.)
pub const fn device_type(ty: TensorType) -> WeightType {
    match ty.encoding() {
        Some(Encoding::Blocks(ty)) => ty.format().device.ty,
        Some(Encoding::Float(FloatType::F16)) => WeightType::F16,
        Some(Encoding::Float(FloatType::BF16)) => WeightType::BF16,
        Some(Encoding::Float(FloatType::F32)) | None => WeightType::F32,
    }
}

/// Bytes on the GPU of a row of `cols` columns, for weights that have `ty` in their file.
pub fn device_row_bytes(ty: TensorType, cols: usize) -> u64 {
    device_type(ty).row_bytes(cols) as u64
}

/// Why weights of `ty` take more bytes on the GPU than in their file; `None` if they do not.
pub fn widening_reason(ty: TensorType) -> Option<&'static str> {
    match device_type(ty) {
        device if device.name() == ty.name() || !ty.is_weight() => None,
        _ => Some("kernels have no code books"),
    }
}

/// True if weights of `ty` keep their values on the GPU: all do but those of code books, which become Q8_0.
pub fn is_exact(ty: TensorType) -> bool {
    ty == TensorType::Q8_0 || device_type(ty) != WeightType::Q8_0
}

/// Splits `row`, whole blocks of `ty` whose weights are times `factor`, into `main` and `aux`, which are as long as
/// [`WeightType::main_len`] and [`WeightType::aux_len`] of [`device_type`] say; all of both is written.
///
/// # Errors
/// [`Error::Invalid`] for a scale that the GPU's encoding cannot hold, [`Error::Unsupported`] for a factor of a type without.
pub fn repack(ty: TensorType, row: &[u8], factor: f32, main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let device = device_type(ty);
    let (first, aux) = aux.split_at_mut(if device.has_row_factor() { 4 } else { 0 });
    if first.is_empty() && factor != 1.0 {
        return Err(Error::Unsupported {
            what: "factor of a matrix on the GPU",
            got: format!("{factor} ({ty})"),
            supported: "1, or any of NVFP4 and I2_S".to_owned(),
        });
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

/// Codes of a chunk, below 16 in their lower four bits, as 16 bytes: byte `j` holds `j` (low) and `j + 16` (high).
pub(super) fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + 16] << 4)
}

/// Codes below 4 as pairs of bits, sixteen to a word.
pub(super) fn pairs<const CODES: usize, const BYTES: usize>(codes: &[u8; CODES]) -> [u8; BYTES] {
    const { assert!(CODES == 4 * BYTES) };
    std::array::from_fn(|at| (0..4).fold(0, |byte, j| byte | codes[4 * at + j] << (2 * j)))
}

/// Blocks that have `MAIN` bytes in one stream and `AUX` in the other: `block(bytes, main, aux)` fills them in.
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

/// [`map_blocks`] for blocks with an F16 scale, which `block` returns: those of a row lie behind its other bytes.
pub(super) fn split_blocks<const BYTES: usize, const MAIN: usize, const AUX: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
    block: impl Fn(&[u8; BYTES], &mut [u8; MAIN], &mut [u8]) -> [u8; 2],
) -> Result<()> {
    let blocks = row.as_chunks::<BYTES>().0;
    let (aux, scales) = aux.split_at_mut(AUX * blocks.len());
    // A row's last word of scales may have only one.
    scales[2 * blocks.len()..].fill(0);
    let out = main.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
    for (at, (bytes, (main, scale))) in blocks.iter().zip(out).enumerate() {
        *scale = block(bytes, main, &mut aux[AUX * at..][..AUX]);
    }
    Ok(())
}

/// Blocks behind an F16 scale as `CODES` bytes of codes and the scale, as they are.
pub(super) fn split_scales<const BYTES: usize, const CODES: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
) -> Result<()> {
    const { assert!(BYTES == CODES + 2) };
    split_blocks::<BYTES, CODES, 0>(row, main, aux, |block, main, _| {
        main.copy_from_slice(&block[2..]);
        [block[0], block[1]]
    })
}

/// Widens super-blocks with one scale per 32 and no minima to Q8_0.
pub(super) fn widen_to_q8_0(ty: BlockType, row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let format = ty.format();
    let (mut codes, mut scales) = ([0i8; 256], [0f32; 8]);
    let out = main.as_chunks_mut::<256>().0.iter_mut().zip(aux.as_chunks_mut::<16>().0);
    for (block, (main, aux)) in row.chunks_exact(format.bytes).zip(out) {
        (format.unpack)(block, UnpackedMut { codes: &mut codes, scales: &mut scales, mins: &mut [] });
        *main = codes.map(|code| code as u8);
        for (to, scale) in aux.as_chunks_mut::<2>().0.iter_mut().zip(&scales) {
            let half = f16::from_f32(*scale);
            if scale.is_finite() && half.is_infinite() {
                let expected = format!("magnitudes up to {:e}", f16::MAX);
                return Err(Error::invalid(
                    "scales of weights for the GPU",
                    expected,
                    format!("{scale:e} ({ty})", ty = format.ty),
                ));
            }
            *to = half.to_le_bytes();
        }
    }
    Ok(())
}

/// Decodes super-blocks and quantises them again, to Q8_0.
pub(super) fn requantise_to_q8_0(ty: BlockType, row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let format = ty.format();
    let (mut values, mut blocks) = ([0.0; 256], Vec::with_capacity(8 * 34));
    let out = main.as_chunks_mut::<256>().0.iter_mut().zip(aux.as_chunks_mut::<16>().0);
    for (block, (main, aux)) in row.chunks_exact(format.bytes).zip(out) {
        dequantise(format.ty, block, &mut values);
        blocks.clear();
        quantise(TensorType::Q8_0, &values, &mut blocks)?;
        split_scales::<34, 32>(&blocks, main, aux)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use thermocline_shaders::WeightRow;

    use super::*;
    use crate::quant::tests::{WEIGHTS, random_weights, widening_error};

    /// Streams of a row, over bytes that were not zero.
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
            // An odd number of blocks, so that a word of scales is half empty.
            let cols = if ty.block_len() == 1 { 45 } else { ty.block_len() * 3 };
            for seed in 0..5 {
                let row = random_weights(ty, cols, &mut ChaCha8Rng::seed_from_u64(seed));
                let mut expected = vec![0.0; cols];
                dequantise(ty, &row, &mut expected);
                let (main, aux) = repacked(ty, &row, cols);
                let row = WeightRow { ty: device_type(ty), main: &main, aux: &aux };
                for (col, value) in expected.iter().enumerate() {
                    let (got, value) = (row.value(col), f64::from(*value));
                    let chunk = &expected[col / 32 * 32..][..32.min(cols - col / 32 * 32)];
                    let largest = chunk.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                    // `dequantise` rounds products to f32.
                    let most = 3e-7 * (value.abs() + 1e-3) + widening_error(ty) * f64::from(largest);
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
            let most = match ty {
                TensorType::IQ1_S
                | TensorType::IQ1_M
                | TensorType::IQ2_XXS
                | TensorType::IQ2_XS
                | TensorType::IQ2_S
                | TensorType::IQ3_XXS
                | TensorType::IQ3_S => device_row_bytes(TensorType::Q8_0, 4096),
                _ => file + file / 100,
            };
            assert!((file..=most).contains(&device), "{ty}: {device} bytes, {file} in the file");
            assert_eq!(widening_reason(ty).is_some(), device > file + file / 100, "{ty}");
            assert_eq!(is_exact(ty), widening_error(ty) == 0.0, "{ty}");
        }
    }

    #[test]
    fn repack_refuses_scales_beyond_f16() {
        // Of a type that is widened and of one that is quantised again: the largest d, and the largest scales beside it.
        for (ty, scales) in [(TensorType::IQ3_S, 106..110), (TensorType::IQ2_S, 74..82)] {
            let mut row = random_weights(ty, 256, &mut ChaCha8Rng::seed_from_u64(1));
            row[..2].copy_from_slice(&f16::MAX.to_le_bytes());
            row[scales].fill(0xff);
            let (mut main, mut aux) = (vec![0; 256], vec![0; 16]);
            let error = repack(ty, &row, 1.0, &mut main, &mut aux).unwrap_err().to_string();
            assert!(error.contains("6.5504e4"), "{error}");
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
