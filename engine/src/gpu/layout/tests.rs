//! Rows of every file type, repacked and read back as [`WeightType`] documents it, against the decoding of the file's.

use half::{bf16, f16};

use super::*;
use crate::format::blocks::{QUANTISABLE, dequantise, quantise};

/// Every type a matrix may have.
pub const WEIGHTS: [TensorType; 16] = {
    use TensorType::*;
    [F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4]
};

/// A row of weights of magnitude around one.
pub fn random_row(ty: TensorType, cols: usize, seed: u64) -> Vec<u8> {
    use rand::{RngExt, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut row = Vec::new();
    if QUANTISABLE.contains(&ty) {
        let values: Vec<f32> = (0..cols).map(|_| random.random_range(-1.0..1.0)).collect();
        quantise(ty, &values, &mut row).unwrap();
        return row;
    }
    // The others are not written by this engine: any codes will do, scales must be numbers.
    row = (0..ty.row_bytes(cols).unwrap()).map(|_| random.random()).collect();
    for block in row.chunks_exact_mut(ty.block_bytes()) {
        let mut scale = |at: usize, most: f32| {
            block[at..at + 2].copy_from_slice(&f16::from_f32(random.random_range(-most..most)).to_le_bytes());
        };
        match ty {
            TensorType::Q2_K => {
                scale(80, 0.02);
                scale(82, 0.02);
            }
            TensorType::Q3_K => scale(108, 0.01),
            TensorType::IQ4_NL => scale(0, 0.01),
            TensorType::IQ4_XS => scale(0, 0.0003),
            _ => block[0] = 122 + block[0] % 6,
        }
    }
    row
}

/// Largest error of widening, as a share of the largest weight of a chunk.
pub fn widening_error(ty: TensorType) -> f64 {
    match ty {
        TensorType::IQ4_XS => 1.0 / 2048.0,
        // Half a step of the codes, and the scale's rounding.
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q2_K => 1.0 / 254.0 + 1.0 / 2048.0,
        _ => 0.0,
    }
}

/// Streams of a row that was filled with rubbish before.
fn repacked(ty: TensorType, row: &[u8], cols: usize) -> (Vec<u32>, Vec<u32>) {
    let device = device_type(ty);
    let (mut main, mut aux) = (vec![0xa5; device.main_len(cols) * 16], vec![0xa5; device.aux_len(cols) * 4]);
    repack(ty, row, &mut main, &mut aux).unwrap();
    let words = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    (words(main), words(aux))
}

/// What a device's weights mean.
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
fn rows_mean_the_same_on_the_device() {
    for ty in WEIGHTS {
        // An odd number of chunks, so that a word of scales is half empty.
        let cols = if ty.block_len() == 1 { 45 } else { ty.block_len() * 3 };
        for seed in 0..5 {
            let row = random_row(ty, cols, seed);
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
        }
    }
}

#[test]
fn scales_beyond_the_devices_type_are_refused() {
    let mut row = random_row(TensorType::MXFP4, 64, 1);
    row[17] = 200;
    let (mut main, mut aux) = (vec![0; 64], vec![0; 4]);
    let error = repack(TensorType::MXFP4, &row, &mut main, &mut aux).unwrap_err().to_string();
    assert!(error.contains("MXFP4") && error.contains("65504") | error.contains("6.5504e4"), "{error}");
}
