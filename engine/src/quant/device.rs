//! Weights on the GPU: every row is split into the two streams of a [`WeightType`], one of aligned codes (`main`) and one of
//! scales (`aux`). Types without a GPU kernel of their own are widened to one that has, exactly where [`is_exact`] says so:
//!
//! | in the file | on the device | loss |
//! |---|---|---|
//! | Q5_0, IQ4_NL | Q8_0 | none: their codes are small integers under one scale |
//! | IQ4_XS | Q8_0 | the scale of a chunk is rounded to F16: at most 2^-11 of a weight |
//! | Q3_K | Q6_K | none: the same two scales, codes shorter |
//! | TQ1_0, TQ2_0 | Q8_0 | none |
//! | Q1_0, Q2_0 | Q4_0 | none |
//! | IQ1_S, IQ2_XXS, IQ3_XXS, IQ3_S | Q8_0 | as IQ4_XS |
//! | Q4_1, Q5_1, Q2_K, IQ1_M, IQ2_XS, IQ2_S, NVFP4 | Q8_0 | quantised again: at most 1/254 of the chunk's largest weight, a fraction of what their own coarse steps lose |
//!
//! Each type's file has its repacking; this file has the dispatch and the encodings that several types are widened to.

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

/// True if weights of `ty` keep their values on the GPU.
pub const fn is_exact(ty: TensorType) -> bool {
    match ty.encoding() {
        Some(Encoding::Blocks(ty)) => ty.format().device.exact,
        Some(Encoding::Float(_)) | None => true,
    }
}

/// Splits `row`, whole blocks of `ty`, into `main` and `aux`, which are as long as [`WeightType::main_len`] and
/// [`WeightType::aux_len`] of [`device_type`] say; all of both is written.
///
/// # Errors
/// [`Error::Invalid`] for a scale that the GPU's encoding cannot hold.
pub fn repack(ty: TensorType, row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
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

/// Splits blocks of 32 behind an F16 scale into `CODES` bytes of codes (`main`) and the scale (`aux`), as they are.
pub(super) fn split_scales<const BYTES: usize, const CODES: usize>(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    const { assert!(BYTES == CODES + 2) };
    let blocks = row.as_chunks::<BYTES>().0;
    // A row's last word of scales may have only one.
    aux[2 * blocks.len()..].fill(0);
    let out = main.as_chunks_mut::<CODES>().0.iter_mut().zip(aux.as_chunks_mut::<2>().0);
    for (block, (codes, scale)) in blocks.iter().zip(out) {
        scale.copy_from_slice(&block[..2]);
        codes.copy_from_slice(&block[2..]);
    }
}

/// Widens a type with one scale per 32 and no minima to Q8_0.
pub(super) fn widen_to_q8_0(ty: BlockType, row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let format = ty.format();
    let (mut codes, mut scales) = ([0i8; 256], [0f32; 8]);
    let chunks = row.len() / format.bytes * (format.len / 32);
    aux[2 * chunks..].fill(0);
    let rows = row.chunks(256 / format.len * format.bytes).zip(main.chunks_mut(256)).zip(aux.chunks_mut(16));
    for ((blocks, main), aux) in rows {
        let codes = &mut codes[..blocks.len() / format.bytes * format.len];
        (format.unpack)(blocks, UnpackedMut { codes, scales: &mut scales, mins: &mut [] });
        main.iter_mut().zip(&*codes).for_each(|(byte, code)| *byte = *code as u8);
        for (to, scale) in aux.as_chunks_mut::<2>().0.iter_mut().zip(&scales[..codes.len() / 32]) {
            *to = f16_scale(format.ty, *scale)?;
        }
    }
    Ok(())
}

/// Widens blocks behind an F16 scale, whose codes are in `-8..8`, to Q4_0: `unpack(block, codes, scales)` decodes one.
pub(super) fn widen_to_q4_0<const BYTES: usize, const LEN: usize, const CHUNKS: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
    unpack: fn(&[u8; BYTES], &mut [i8; LEN], &mut [f32; CHUNKS]),
) {
    let blocks = row.as_chunks::<BYTES>().0;
    aux[2 * CHUNKS * blocks.len()..].fill(0);
    let (mut codes, mut scales) = ([0; LEN], [0.0; CHUNKS]);
    let out = main.chunks_exact_mut(LEN / 2).zip(aux.chunks_exact_mut(2 * CHUNKS));
    for (block, (main, aux)) in blocks.iter().zip(out) {
        unpack(block, &mut codes, &mut scales);
        let chunks = codes.as_chunks::<32>().0.iter().zip(main.as_chunks_mut::<16>().0);
        chunks.for_each(|(codes, main)| *main = nibbles(&codes.map(|code| (code + 8) as u8)));
        aux.as_chunks_mut::<2>().0.fill([block[0], block[1]]);
    }
}

/// Decodes blocks and quantises them again, to Q8_0.
pub(super) fn requantise_to_q8_0(ty: BlockType, row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let format = ty.format();
    let (mut values, mut blocks) = ([0.0; 256], Vec::with_capacity(8 * 34));
    let chunks = row.len() / format.bytes * (format.len / 32);
    aux[2 * chunks..].fill(0);
    let out = main.chunks_exact_mut(format.len).zip(aux.chunks_exact_mut(format.len / 16));
    for (block, (main, aux)) in row.chunks_exact(format.bytes).zip(out) {
        let values = &mut values[..format.len];
        dequantise(format.ty, block, values);
        blocks.clear();
        quantise(TensorType::Q8_0, values, &mut blocks)?;
        split_scales::<34, 32>(&blocks, main, aux);
    }
    Ok(())
}

/// `scale` as F16.
fn f16_scale(ty: TensorType, scale: f32) -> Result<[u8; 2]> {
    let half = f16::from_f32(scale);
    if scale.is_finite() && half.is_infinite() {
        let expected = format!("magnitudes up to {:e}", f16::MAX.to_f32());
        return Err(Error::invalid("scales of weights for the GPU", expected, format!("{scale:e} ({ty})")));
    }
    Ok(half.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::quant::{
        mxfp4,
        tests::{WEIGHTS, random_weights, widening_error},
    };

    /// Streams of a row, over bytes that were not zero.
    fn repacked(ty: TensorType, row: &[u8], cols: usize) -> (Vec<u32>, Vec<u32>) {
        let device = device_type(ty);
        let (mut main, mut aux) = (vec![0xa5; device.main_len(cols) * 16], vec![0xa5; device.aux_len(cols) * 4]);
        repack(ty, row, &mut main, &mut aux).unwrap();
        let words = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        (words(main), words(aux))
    }

    /// The value at `col` of a row on the GPU, as [`WeightType`] documents it.
    fn decode(ty: WeightType, main: &[u32], aux: &[u32], col: usize) -> f32 {
        let (chunk, j) = (col / 32, col % 32);
        let f16s = |word: u32| [word as u16, (word >> 16) as u16].map(|bits| f16::from_bits(bits).to_f32());
        let nibble = || (main[chunk * 4 + j % 16 / 4] >> (j % 4 * 8 + j / 16 * 4) & 15) as f32;
        let c = chunk % 8;
        let affine = |header: &[u32], code: f32| {
            let [d, dmin] = f16s(header[0]);
            let scale = (header[1] >> (4 * c) & 15) | (header[3] >> (2 * c) & 3) << 4;
            let min = (header[2] >> (4 * c) & 15) | (header[3] >> (2 * c + 16) & 3) << 4;
            d * scale as f32 * code - dmin * min as f32
        };
        match ty {
            WeightType::F32 => f32::from_bits(main[col]),
            WeightType::F16 => f16s(main[col / 2])[j % 2],
            WeightType::BF16 => bf16::from_bits((main[col / 2] >> (j % 2 * 16)) as u16).to_f32(),
            WeightType::Q8_0 => f32::from((main[col / 4] >> (j % 4 * 8)) as u8 as i8) * f16s(aux[chunk / 2])[chunk % 2],
            WeightType::Q4_0 => (nibble() - 8.0) * f16s(aux[chunk / 2])[chunk % 2],
            WeightType::MXFP4 => {
                let e = (aux[chunk / 4] >> (chunk % 4 * 8)) as u8;
                let scale = if e < 2 { 0.0 } else { mxfp4::scale(e) };
                f32::from(mxfp4::VALUES[nibble() as usize]) * scale
            }
            WeightType::Q4_K => affine(&aux[chunk / 8 * 4..], nibble()),
            WeightType::Q5_K => {
                let aux = &aux[chunk / 8 * 12..];
                affine(aux, nibble() + (16 * (aux[4 + c] >> j & 1)) as f32)
            }
            WeightType::Q6_K => {
                let aux = &aux[chunk / 8 * 21..];
                let code = nibble() + (16 * (aux[2 * c + j / 16] >> (j % 16 * 2) & 3)) as f32;
                let scale = (aux[16 + c / 2] >> (c % 2 * 16 + j / 16 * 8)) as u8 as i8;
                f16s(aux[20])[0] * f32::from(scale) * (code - 32.0)
            }
        }
    }

    #[test]
    fn repacked_rows_decode_to_the_values_of_the_file() {
        for ty in WEIGHTS {
            // An odd number of chunks, so that a word of scales is half empty.
            let cols = if ty.block_len() == 1 { 45 } else { ty.block_len() * 3 };
            for seed in 0..5 {
                let row = random_weights(ty, cols, &mut ChaCha8Rng::seed_from_u64(seed));
                let mut expected = vec![0.0; cols];
                dequantise(ty, &row, &mut expected);
                let (main, aux) = repacked(ty, &row, cols);
                let device = device_type(ty);
                for (chunk, expected) in expected.chunks(32).enumerate() {
                    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                    for (j, expected) in expected.iter().enumerate() {
                        let got = decode(device, &main, &aux, 32 * chunk + j);
                        let error = f64::from((got - expected).abs());
                        // The order of products may differ by a rounding.
                        let most = widening_error(ty) * f64::from(largest) + 3e-7 * f64::from(expected.abs());
                        assert!(error <= most, "{ty} seed {seed} chunk {chunk} column {j}: {got}, expected {expected}");
                    }
                }
                let padded = cols.next_multiple_of(device.block());
                assert!((cols..padded).all(|col| decode(device, &main, &aux, col) == 0.0), "{ty}: padding");
                assert_eq!(is_exact(ty), widening_error(ty) == 0.0, "{ty}");
            }
        }
    }

    #[test]
    fn repack_refuses_scales_beyond_f16() {
        let mut row = random_weights(TensorType::IQ4_XS, 256, &mut ChaCha8Rng::seed_from_u64(1));
        row[..2].copy_from_slice(&f16::MAX.to_le_bytes());
        // The largest of each group's scales.
        row[2..8].fill(0xff);
        let (mut main, mut aux) = (vec![0; 256], vec![0; 16]);
        let error = repack(TensorType::IQ4_XS, &row, &mut main, &mut aux).unwrap_err().to_string();
        assert!(error.contains("IQ4_XS") && error.contains("65504") | error.contains("6.5504e4"), "{error}");
    }
}
