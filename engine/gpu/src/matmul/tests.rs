//! Tests products of every file type in every tier, in one part and in several, against the decoded
//! rows.

use std::ops::ControlFlow;

use rand::SeedableRng;
use thermocline_shaders::WeightType;

use super::*;
use crate::{
    ExpertInput, ExpertMatmul, ExpertPairs, GpuOptions, MatrixLayout, MemoryUse, Purpose, ReadbackRing, Tier,
    UploadRing, Uploader, Usage, product_sample::ExactSum,
};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::{TensorType, sample::random_weights},
};

fn open(tier: Tier, max_binding: Option<u64>) -> Gpu {
    Gpu::open(&GpuOptions { tier: Some(tier), max_binding, ..GpuOptions::first() }).unwrap()
}

fn random_matrix(ty: TensorType, rows: usize, cols: usize, seed: u64) -> Matrix {
    let random = &mut rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    Matrix::new(ty, rows, cols, Bytes::new(random_weights(ty, rows * cols, random))).unwrap()
}

fn noise(len: usize, seed: u64) -> Vec<f32> {
    use rand::RngExt;
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| random.random_range(-1.0..1.0)).collect()
}

fn upload(gpu: &Gpu, stacked: &[&Matrix]) -> GpuMatrix {
    let mut progress = |_, _| ControlFlow::Continue(());
    let mut uploader = Uploader::new(gpu, &mut progress).unwrap();
    let matrix = uploader.matrix(Purpose::Ffn, "test", stacked).unwrap();
    uploader.finish().unwrap();
    matrix
}

/// Tokens' activations in padded rows.
struct TestInput {
    values: Vec<f32>,
    cols: usize,
    buffer: Buffer,
}

impl TestInput {
    fn random(gpu: &Gpu, tokens: usize, cols: usize) -> Self {
        let mut values = noise(tokens * pitch(cols), 77);
        values.chunks_exact_mut(pitch(cols)).for_each(|row| row[cols..].fill(0.0));
        TestInput::new(gpu, values, cols)
    }

    fn new(gpu: &Gpu, values: Vec<f32>, cols: usize) -> Self {
        let bytes = bytemuck::cast_slice(&values);
        let buffer = gpu.arena().buffer(Purpose::Scratch, "x", bytes.len() as u64, Usage::Storage).unwrap();
        let mut ring = UploadRing::new(gpu, 1, bytes.len() as u64).unwrap();
        let mut recorder = Recorder::new(gpu);
        ring.record(&mut recorder, &[(bytes, &buffer, 0)]).unwrap();
        recorder.submit().unwrap();
        TestInput { values, cols, buffer }
    }

    /// Returns one token's activations as an input of one row.
    fn token(&self, gpu: &Gpu, token: usize) -> Self {
        let pitch = pitch(self.cols);
        TestInput::new(gpu, self.values[token * pitch..][..pitch].to_vec(), self.cols)
    }
}

const OFFSET: usize = 3;

/// Returns `[tokens, rows + OFFSET]`, computed on the device.
fn product(gpu: &Gpu, matrix: &GpuMatrix, x: &TestInput, bias: Option<&Buffer>, tokens: usize) -> Vec<f32> {
    let pitch = matrix.rows() + OFFSET;
    let bytes = (tokens * pitch * 4) as u64;
    let y = gpu.arena().buffer(Purpose::Scratch, "y", bytes, Usage::Storage).unwrap();
    let matmul = Matmul::new(gpu, matrix, &x.buffer, bias, &y, pitch, OFFSET).unwrap();
    let mut recorder = Recorder::new(gpu);
    matmul.record(&mut recorder, tokens);
    let mut ring = ReadbackRing::new(gpu, 1, bytes).unwrap();
    ring.read(recorder, &[(&y, 0, bytes)], || (), bytemuck::pod_collect_to_vec).unwrap()
}

/// Compares a product with the sums of the decoded rows.
fn check(got: &[f32], stacked: &[&Matrix], x: &TestInput, bias: &[f32], tokens: usize, what: &str) {
    let rows: usize = stacked.iter().map(|matrix| matrix.rows()).sum();
    let mut decoded = vec![0.0; x.cols];
    let all = stacked.iter().flat_map(|matrix| (0..matrix.rows()).map(move |row| (matrix, row)));
    for (at, (matrix, row)) in all.enumerate() {
        matrix.dequantise_row(row, &mut decoded);
        for t in 0..tokens {
            let x = &x.values[t * pitch(x.cols)..][..x.cols];
            let ExactSum { sum, magnitude, .. } = ExactSum::new(&decoded, x);
            let expected = sum + bias.get(at).map_or(0.0, |bias| f64::from(*bias));
            let most = 1e-5 * (magnitude + 1.0);
            let got = got[t * (rows + OFFSET) + OFFSET + at];
            let error = (f64::from(got) - expected).abs();
            assert!(error <= most, "{what}: row {at} of token {t} is {got}, expected {expected} within {most}");
        }
    }
}

fn every_type_agrees_with_f64(tier: Tier) {
    let gpu = open(tier, None);
    for ty in TensorType::WEIGHTS {
        let (rows, cols) = (37, if ty.block_len() == 1 { 333 } else { 768 });
        let file = random_matrix(ty, rows, cols, 1);
        let matrix = upload(&gpu, &[&file]);
        let x = TestInput::random(&gpu, 33, cols);
        for tokens in [1, 7, 33] {
            let got = product(&gpu, &matrix, &x, None, tokens);
            check(&got, &[&file], &x, &[], tokens, &format!("{ty} {tier} {tokens} tokens"));
            assert!(got.chunks_exact(rows + OFFSET).all(|row| row[..OFFSET] == [0.0; OFFSET]), "{ty}: outside");
        }
    }
}

#[test]
fn matmul_agrees_with_f64_for_every_type() {
    every_type_agrees_with_f64(Tier::PORTABLE);
    every_type_agrees_with_f64(Tier { subgroups: true, f16: true });
}

#[test]
#[ignore = "second tier: the device tiers between the lowest and the highest"]
fn matmul_agrees_with_f64_for_every_type_and_tier() {
    Tier::ALL.into_iter().for_each(every_type_agrees_with_f64);
}

/// Checks the kernels for a few tokens. Every token's product has the bits that it has alone.
fn tokens_have_their_own_bits(options: GpuOptions, types: &[TensorType]) {
    let what = format!("{:?}, packed {:?}", options.tier, options.packed_dot);
    let gpu = Gpu::open(&GpuOptions { adapter: GpuOptions::first().adapter, ..options }).unwrap();
    for ty in types {
        let (rows, cols) = (37, if ty.block_len() == 1 { 333 } else { 768 });
        let matrix = upload(&gpu, &[&random_matrix(*ty, rows, cols, 5)]);
        let x = TestInput::random(&gpu, FEW_TOKENS, cols);
        let alone = (0..FEW_TOKENS).flat_map(|token| product(&gpu, &matrix, &x.token(&gpu, token), None, 1));
        let alone: Vec<u32> = alone.map(f32::to_bits).collect();
        for tokens in 2..=FEW_TOKENS {
            let together = product(&gpu, &matrix, &x, None, tokens);
            let same = together.iter().zip(&alone).filter(|(together, alone)| together.to_bits() == **alone).count();
            assert_eq!(same, together.len(), "{ty} {tokens} tokens, {what}");
        }
    }
}

#[test]
fn tokens_have_the_same_bits_alone_and_among_others() {
    let packed: Vec<TensorType> =
        TensorType::WEIGHTS.into_iter().filter(|ty| WeightType::PACKED.contains(&ty.device_type())).collect();
    for tier in [Tier::PORTABLE, Tier { subgroups: true, f16: true }] {
        let options = |packed| GpuOptions { tier: Some(tier), packed_dot: Some(packed), ..GpuOptions::default() };
        tokens_have_their_own_bits(options(false), &TensorType::WEIGHTS);
        tokens_have_their_own_bits(options(true), &packed);
    }
}

#[test]
fn matmul_agrees_with_f64_for_stacked_and_split_matrices() {
    let gpu = open(Tier { subgroups: true, f16: true }, Some(96 << 10));
    for ty in [TensorType::F32, TensorType::Q4_0, TensorType::Q5_K, TensorType::Q6_K] {
        let files = [(100, 2), (1, 3), (250, 4)].map(|(rows, seed)| random_matrix(ty, rows, 512, seed));
        let stacked = files.each_ref();
        let used = gpu.arena().used_for(Purpose::Ffn);
        let matrix = upload(&gpu, &stacked);
        assert!(matrix.parts().len() > 1, "{ty}");
        assert!(matrix.parts().iter().all(|part| part.buffer().bytes() <= 96 << 10), "{ty}");
        assert_eq!(gpu.arena().used_for(Purpose::Ffn) - used, matrix.bytes());
        assert_eq!(GpuMatrix::bytes_of(gpu.caps(), matrix.ty(), 351, 512).unwrap(), matrix.bytes());
        let x = TestInput::random(&gpu, 33, 512);
        let bias = noise(351, 5);
        let mut progress = |_, _| ControlFlow::Continue(());
        let mut uploader = Uploader::new(&gpu, &mut progress).unwrap();
        let on_device = uploader.vector(Purpose::Vectors, "bias", &bias).unwrap();
        uploader.finish().unwrap();
        for tokens in [1, 2, 33] {
            let got = product(&gpu, &matrix, &x, Some(&on_device), tokens);
            check(&got, &stacked, &x, &bias, tokens, &format!("{ty} in {} parts", matrix.parts().len()));
        }
    }
}

#[test]
fn packed_matmul_equals_that_of_rounded_activations() {
    for tier in [Tier::PORTABLE, Tier { subgroups: true, f16: true }] {
        let options = GpuOptions { tier: Some(tier), ..GpuOptions::first() };
        let gpu = Gpu::open(&GpuOptions { packed_dot: Some(true), max_binding: Some(96 << 10), ..options }).unwrap();
        for ty in [
            TensorType::Q4_0,
            TensorType::Q8_0,
            TensorType::Q4_K,
            TensorType::Q3_K,
            TensorType::BF16,
            TensorType::IQ1_M,
            TensorType::IQ1_S,
            TensorType::IQ2_XS,
            TensorType::IQ3_XXS,
        ] {
            let file = random_matrix(ty, 301, 768, 8);
            let matrix = upload(&gpu, &[&file]);
            let many = FEW_TOKENS + 1;
            let mut x = TestInput::random(&gpu, many, 768);
            let what = format!("{ty} {tier}");
            check(&product(&gpu, &matrix, &x, None, many), &[&file], &x, &[], many, &what);
            let got = [1, 2, FEW_TOKENS].map(|tokens| (tokens, product(&gpu, &matrix, &x, None, tokens)));
            if WeightType::PACKED.contains(&matrix.ty()) {
                for chunk in x.values.chunks_exact_mut(32) {
                    let scale = chunk.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
                    // No value is near a rounding tie, where the last bit of the scale decides.
                    chunk.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even() * scale);
                }
            }
            got.iter().for_each(|(tokens, got)| check(got, &[&file], &x, &[], *tokens, &what));
        }
    }
}

#[test]
fn matmul_agrees_with_f64_for_any_number_of_tokens() {
    let gpu = open(Tier { subgroups: true, f16: true }, None);
    let file = random_matrix(TensorType::Q6_K, 131, 256, 8);
    let matrix = upload(&gpu, &[&file]);
    let x = TestInput::random(&gpu, 130, 256);
    for tokens in [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 100, 130] {
        check(&product(&gpu, &matrix, &x, None, tokens), &[&file], &x, &[], tokens, &format!("{tokens} tokens"));
    }
}

#[test]
fn expert_matmul_uses_the_experts_of_each_slot() {
    // A part has room for a few experts.
    for (tier, ty, max_binding) in [
        (Tier::PORTABLE, TensorType::F16, Some(16 << 10)),
        (Tier { subgroups: true, f16: true }, TensorType::Q4_K, None),
        (Tier { subgroups: true, f16: false }, TensorType::Q8_0, Some(16 << 10)),
    ] {
        let gpu = open(tier, max_binding);
        let (experts, rows, cols, tokens, used) = (5, 14, 256, 3, 2);
        // Each expert has two matrices, one stacked on the other.
        let files: Vec<Matrix> = (0..experts * 2).map(|at| random_matrix(ty, rows / 2, cols, at as u64)).collect();
        let stacked: Vec<&Matrix> = files.iter().collect();
        let mut progress = |_, _| ControlFlow::Continue(());
        let mut uploader = Uploader::new(&gpu, &mut progress).unwrap();
        let half = rows / 2;
        let row = |row: usize| Some((stacked[row / half], row % half));
        let layout = MatrixLayout { ty: ty.device_type(), rows: experts * rows, cols, rows_together: rows };
        let what = MemoryUse { purpose: Purpose::Ffn, what: "test" };
        let matrix = uploader.gathered(what, layout, &row).unwrap();
        assert_eq!(matrix.parts().len() > 1, max_binding.is_some());
        let bias = noise(experts * rows, 9);
        let bias_buffer = uploader.vector(Purpose::Vectors, "bias", &bias).unwrap();
        // Places of experts. The matrix starts with the second place.
        let ids = [5_u32, 1, 2, 4, 3, 5];
        let as_floats = ids.map(f32::from_bits);
        let ids_buffer = uploader.vector(Purpose::Scratch, "ids", &as_floats).unwrap();
        uploader.finish().unwrap();
        let x = TestInput::random(&gpu, tokens * used, cols);
        let y_pitch = rows + OFFSET;
        let bytes = (ids.len() * y_pitch * 4) as u64;
        let y = gpu.arena().buffer(Purpose::Scratch, "y", bytes, Usage::Storage).unwrap();
        let output = MatmulOutput { buffer: &y, pitch: y_pitch, offset: OFFSET, epilogue: Epilogue::Store };
        let groups = ExpertPairs::new(&gpu, &ids_buffer, ids.len(), experts + 1).unwrap();
        let input = |pairs_per_row, bias| ExpertInput {
            x: &x.buffer,
            x_pitch: pitch(cols),
            pairs_per_row,
            places: &ids_buffer,
            groups: &groups,
            bias,
        };
        for (pairs_per_row, grouped) in [(used, false), (1, false), (used, true), (1, true)] {
            let input = input(pairs_per_row, Some(&bias_buffer));
            let matmul = ExpertMatmul::new(&gpu, &matrix, 1..experts + 1, &input, &output).unwrap();
            let mut recorder = Recorder::new(&gpu);
            if grouped {
                groups.record(&mut recorder, ids.len());
            }
            matmul.record(&mut recorder, ids.len(), grouped);
            let mut ring = ReadbackRing::new(&gpu, 1, bytes).unwrap();
            let got: Vec<f32> = ring.read(recorder, &[(&y, 0, bytes)], || (), bytemuck::pod_collect_to_vec).unwrap();
            for (pair, expert) in ids.into_iter().enumerate() {
                let expert = expert as usize - 1;
                let own = TestInput {
                    values: x.values[pair / pairs_per_row * pitch(cols)..][..cols].to_vec(),
                    cols,
                    buffer: x.buffer.clone(),
                };
                let got = &got[pair * y_pitch..][..y_pitch];
                let what = format!("{ty} pair {pair} pairs per row {pairs_per_row} grouped {grouped}");
                check(got, &stacked[expert * 2..][..2], &own, &bias[expert * rows..][..rows], 1, &what);
            }
        }
        assert!(ExpertMatmul::new(&gpu, &matrix, 0..experts + 1, &input(1, None), &output).is_err());
    }
}

#[test]
fn uploader_reports_progress_and_can_be_cancelled() {
    let gpu = open(Tier::PORTABLE, None);
    let file = random_matrix(TensorType::F16, 4000, 1024, 6);
    let bytes = file.data().len() as u64;
    let mut seen = Vec::new();
    let mut progress = |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    let mut uploader = Uploader::new(&gpu, &mut progress).unwrap();
    uploader.expect(bytes);
    let matrix = uploader.matrix(Purpose::Ffn, "test", &[&file]).unwrap();
    uploader.finish().unwrap();
    assert!(seen.len() > 1 && seen.windows(2).all(|pair| pair[0].0 < pair[1].0), "{seen:?}");
    assert_eq!(seen.last(), Some(&(bytes, bytes)));
    // Rows that several threads repacked must be at their right offsets.
    let mut down = ReadbackRing::new(&gpu, 1, bytes).unwrap();
    let piece = (matrix.parts()[0].buffer(), 0, bytes);
    down.read(Recorder::new(&gpu), &[piece], || (), |got| assert!(got == file.data())).unwrap();
    drop((matrix, down));

    let used = gpu.arena().used();
    let mut stop = |_, _| ControlFlow::Break(());
    let mut uploader = Uploader::new(&gpu, &mut stop).unwrap();
    let cancelled = uploader.matrix(Purpose::Ffn, "test", &[&file]);
    assert!(matches!(cancelled, Err(thermocline_base::error::Error::Cancelled)));
    drop(uploader);
    assert_eq!(gpu.arena().used(), used);
}

#[test]
fn uploader_refuses_matrices_that_differ() {
    let gpu = open(Tier::PORTABLE, None);
    let mut progress = |_, _| ControlFlow::Continue(());
    let mut uploader = Uploader::new(&gpu, &mut progress).unwrap();
    let [a, b] = [TensorType::Q4_0, TensorType::Q8_0].map(|ty| random_matrix(ty, 2, 64, 1));
    let wide = random_matrix(TensorType::Q4_0, 2, 96, 1);
    for stacked in [&[][..], &[&a, &b], &[&a, &wide]] {
        assert!(uploader.matrix(Purpose::Ffn, "test", stacked).is_err());
    }
}
