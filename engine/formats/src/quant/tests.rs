//! Tests all types against the fixtures in `tests/fixtures/quants`: reference bytes and reference
//! values of 8 x 512 matrices.

use std::{collections::HashMap, path::PathBuf};

use proptest::prelude::*;

use super::*;
use crate::format::{Matrix, Opened, ReadMode, Tensor, open};

const ROWS: usize = 8;
const COLS: usize = 512;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quants").join(name)
}

/// Reference blocks per type. llama.cpp's quantiser wrote them, or they are random.
fn reference() -> HashMap<TensorType, Tensor> {
    let files = ["quants.gguf", "blocks.gguf"].map(|name| match open(&fixture(name), ReadMode::Map).unwrap() {
        Opened::Checkpoint(file) => file,
        _ => panic!("not a GGUF"),
    });
    let tensor = |ty: TensorType| {
        let tensor = files.iter().find_map(|file| file.tensor(&format!("q.{ty}"))).unwrap();
        assert_eq!((tensor.ty, &tensor.shape[..]), (ty, &[ROWS, COLS][..]));
        (ty, tensor.clone())
    };
    TensorType::WEIGHTS.map(tensor).into()
}

/// A tensor of the expected values.
fn expected(name: &str) -> Vec<f32> {
    let values = ["quants_expected.safetensors", "blocks_expected.safetensors"].into_iter().find_map(|path| {
        let file = std::fs::read(fixture(path)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        assert_eq!(tensor.shape(), [ROWS, COLS]);
        Some(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    });
    values.unwrap()
}

fn rms(a: &[f32], b: &[f32]) -> f64 {
    (a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
}

fn round_trip(ty: TensorType, x: &[f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    quantise(ty, x, &mut bytes).unwrap();
    let mut back = vec![f32::NAN; x.len()];
    dequantise(ty, &bytes, &mut back);
    back
}

#[test]
fn dequantise_equals_the_reference_values() {
    let reference = reference();
    let check = |matrix: &Matrix, name: &str| {
        let mut values = vec![f32::NAN; ROWS * COLS];
        values.chunks_exact_mut(COLS).enumerate().for_each(|(row, values)| matrix.dequantise_row(row, values));
        for (at, (got, want)) in values.iter().zip(expected(name)).enumerate() {
            assert!(*got == want, "{name} row {} column {}: {got:e}, expected {want:e}", at / COLS, at % COLS);
        }
    };
    for ty in TensorType::WEIGHTS {
        check(&reference[&ty].matrix().unwrap(), ty.name());
    }
    check(&reference[&TensorType::NVFP4].matrix().unwrap().with_factor(0.0123), "NVFP4.scaled");
}

#[test]
fn ternary_types_keep_ternary_weights() {
    let x: Vec<f32> = (0..512).map(|i| 0.75 * ((i * i / 3) % 3) as f32 - 0.75).collect();
    for ty in [TensorType::TQ1_0, TensorType::TQ2_0] {
        assert_eq!(round_trip(ty, &x), x, "{ty}");
    }
    let encoded = reference()[&TensorType::I2_S].clone();
    assert_eq!(encode_i2_s(&expected("I2_S")).unwrap(), encoded.data.to_vec());
    let signs: Vec<f32> = x.iter().map(|x| if *x < 0.0 { -0.5 } else { 0.5 }).collect();
    assert_eq!(round_trip(TensorType::Q1_0, &signs), signs);
}

#[test]
fn quantise_equals_the_reference_bytes() {
    use TensorType::*;
    let (source, reference) = (expected("source"), reference());
    for ty in [F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1] {
        let mut got = Vec::new();
        quantise(ty, &source, &mut got).unwrap();
        for (at, (got, want)) in
            got.chunks(ty.block_bytes()).zip(reference[&ty].data.chunks(ty.block_bytes())).enumerate()
        {
            assert_eq!(got, want, "{ty} block {at}");
        }
    }
}

#[test]
fn quantise_of_k_types_is_as_accurate_as_the_reference() {
    use TensorType::*;
    let source = expected("source");
    for ty in [Q4_K, Q5_K, Q6_K] {
        let (ours, theirs) = (round_trip(ty, &source), expected(ty.name()));
        for row in 0..ROWS {
            let at = row * COLS..(row + 1) * COLS;
            let ratio = rms(&ours[at.clone()], &source[at.clone()]) / rms(&theirs[at.clone()], &source[at]);
            println!("{ty} row {row}: {ratio:.4}");
            assert!(ratio <= 1.02, "{ty} row {row}: {ratio} times the reference's error");
        }
    }
}

#[test]
fn round_trip_keeps_zeros_and_constants() {
    for ty in QUANTISABLE {
        assert!(round_trip(ty, &[0.0; 256]).iter().all(|x| *x == 0.0), "{ty}");
        for constant in [1.0f32, -1.0, 0.01, -300.0] {
            // MXFP4 has a power of two as scale, and codes with one bit after the point.
            let most = if ty == TensorType::MXFP4 { 0.2 } else { 0.02 };
            for x in round_trip(ty, &[constant; 256]) {
                assert!((x - constant).abs() <= most * constant.abs(), "{ty}: {constant} became {x}");
            }
        }
    }
}

#[test]
fn quantise_refuses_values_and_lengths_beyond_the_type() {
    for ty in QUANTISABLE {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 256];
            x[77] = bad;
            let mut bytes = vec![1, 2, 3];
            let error = quantise(ty, &x, &mut bytes).unwrap_err().to_string();
            assert!(error.contains("element 77"), "{ty}: {error}");
            assert_eq!(bytes, [1, 2, 3], "{ty}");
        }
        let huge = quantise(ty, &[1e30; 256], &mut Vec::new());
        assert_eq!(huge.is_ok(), matches!(ty, TensorType::F32 | TensorType::BF16), "{ty}");
        if ty.block_len() > 1 {
            assert!(matches!(quantise(ty, &[0.0; 33], &mut Vec::new()), Err(Error::Invalid { .. })), "{ty}");
        }
    }
    for ty in TensorType::ALL.into_iter().filter(|ty| !QUANTISABLE.contains(ty)) {
        let x = vec![0.0; ty.block_len()];
        assert!(matches!(quantise(ty, &x, &mut Vec::new()), Err(Error::Unsupported { .. })), "{ty}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Rows of any spread, offset and magnitude decode to within the error of the type.
    #[test]
    fn round_trip_error_is_within_the_type(
        unit in prop::collection::vec(-1.0f32..1.0, 512),
        exponent in -2i32..4,
        offset in -2.0f32..2.0,
        spike in 0usize..512,
    ) {
        let scale = 10f32.powi(exponent);
        let mut row: Vec<f32> = unit.iter().map(|x| (x + offset) * scale).collect();
        row[spike] *= 4.0;
        let span = row.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        for ty in QUANTISABLE {
            // Largest error of one element, as a fraction of the largest magnitude, with room for
            // the rounding of the scales. (F16 scales lose precision below 6e-5, so rows have
            // ordinary magnitudes.)
            let fraction = match ty {
                TensorType::F32 => 0.0,
                TensorType::F16 => 1.0 / 2048.0,
                TensorType::BF16 => 1.0 / 256.0,
                // Types with three values, and with two.
                TensorType::TQ1_0 | TensorType::TQ2_0 => 0.51,
                TensorType::Q1_0 => 1.0,
                TensorType::Q8_0 => 1.0 / 200.0,
                TensorType::Q6_K => 1.0 / 24.0,
                TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5_K => 1.0 / 10.0,
                _ => 1.0 / 5.0,
            };
            for (x, back) in row.iter().zip(round_trip(ty, &row)) {
                prop_assert!((x - back).abs() <= fraction * span, "{}: {} became {}", ty, x, back);
            }
        }
    }

    /// Any bytes decode without a panic, and any quantiser encodes every finite number without a
    /// panic.
    #[test]
    fn dequantise_and_quantise_take_any_bits(bits in prop::collection::vec(any::<u32>(), 256), bytes in prop::collection::vec(any::<u8>(), 1024)) {
        for ty in TensorType::WEIGHTS {
            let mut out = vec![0.0; 256];
            dequantise(ty, &bytes[..ty.row_bytes(256).unwrap()], &mut out);
        }
        let any: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
        let tame: Vec<f32> = any.iter().map(|x| if x.abs() <= 65504.0 { *x } else { 0.0 }).collect();
        for ty in QUANTISABLE {
            let _ = quantise(ty, &any, &mut Vec::new());
            prop_assert!(round_trip(ty, &tame).iter().all(|x| x.is_finite()), "{}", ty);
        }
    }
}
