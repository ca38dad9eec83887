//! Products in every path, against exact sums.

use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    CpuOptions, FEW_TOKENS, InputPrecision, Isa,
    simd::tests::{random_activations, tolerance},
};
use thermocline_formats::{
    format::{Bytes, RecordPart},
    quant::{TensorType, sample::random_weights},
};

pub(crate) fn random_matrix(ty: TensorType, rows: usize, cols: usize, rng: &mut StdRng) -> Matrix {
    Matrix::new(ty, rows, cols, Bytes::new(random_weights(ty, rows * cols, rng))).unwrap()
}

/// Number of columns: whole blocks of a block type, any number of a float type.
pub(crate) fn columns(ty: TensorType, n: usize) -> usize {
    match ty.block_len() {
        1 => 1 + n,
        len => len * (1 + n % (1200 / len)),
    }
}

pub(crate) fn every_cpu() -> Vec<Cpu> {
    let kinds =
        Isa::available().into_iter().flat_map(|isa| [(isa, InputPrecision::Int8), (isa, InputPrecision::Float)]);
    let options = kinds.flat_map(|(isa, activations)| {
        [1, 3].map(|threads| CpuOptions { threads: Some(threads), isa: Some(isa), activations })
    });
    options.map(|options| Cpu::new(&options).unwrap()).collect()
}

/// Checks that CPUs with one instruction set and precision agree for any number of threads.
pub(crate) fn same_for_threads(
    first: &mut Option<(Isa, InputPrecision, Vec<f32>)>,
    cpu: &Cpu,
    got: Vec<f32>,
) -> Result<(), TestCaseError> {
    match first {
        Some((isa, activations, other)) if (*isa, *activations) == (cpu.isa(), cpu.activations()) => {
            prop_assert_eq!(&got, &*other, "threads matter");
        }
        _ => *first = Some((cpu.isa(), cpu.activations(), got)),
    }
    Ok(())
}

/// Exact sums of rows of a matrix times activations, and the sums of the products' magnitudes.
pub(crate) struct ExactSums {
    sums: Vec<f64>,
    magnitudes: Vec<f64>,
}

impl ExactSums {
    /// Adds the sums over `rows` of `weight` to `before`, `[tokens, d]`. `a` is `[tokens,
    /// rows]`.
    pub(crate) fn new(weight: &Matrix, rows: impl ExactSizeIterator<Item = usize>, a: &[f32], before: &[f32]) -> Self {
        let (n, mut row) = (rows.len(), vec![0.0; weight.cols()]);
        let (mut sums, mut magnitudes): (Vec<f64>, _) =
            (before.iter().map(|x| f64::from(*x)).collect(), vec![1f64; before.len()]);
        for (k, number) in rows.enumerate() {
            weight.dequantise_row(number, &mut row);
            let tokens = sums.chunks_exact_mut(row.len()).zip(magnitudes.chunks_exact_mut(row.len()));
            for (t, (sums, magnitudes)) in tokens.enumerate() {
                for ((sum, magnitude), w) in sums.iter_mut().zip(magnitudes).zip(&row) {
                    let product = f64::from(*w) * f64::from(a[t * n + k]);
                    *sum += product;
                    *magnitude += product.abs();
                }
            }
        }
        ExactSums { sums, magnitudes }
    }

    /// Compares `got` with the exact sums.
    pub(crate) fn check(&self, got: &[f32]) -> Result<(), TestCaseError> {
        for (i, got) in got.iter().enumerate() {
            let error = (f64::from(*got) - self.sums[i]).abs();
            prop_assert!(error <= 1e-5 * self.magnitudes[i], "{}: {} is not {}", i, got, self.sums[i]);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn matmul_agrees_with_f64(
        a in 0..TensorType::WEIGHTS.len(), b in 0..TensorType::WEIGHTS.len(), n in 0usize..300, rows in 1usize..90,
        tokens in prop_oneof![1usize..8, 1usize..30], seed: u64,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let cols = columns(TensorType::WEIGHTS[a], n).next_multiple_of(TensorType::WEIGHTS[b].block_len());
        let weights = [random_matrix(TensorType::WEIGHTS[a], rows, cols, rng), random_matrix(TensorType::WEIGHTS[b], 7, cols, rng)];
        let x = random_activations(tokens * cols, rng);
        let bias = random_activations(rows, rng);
        let mut first = None;
        for cpu in every_cpu() {
            let (mut out, mut second) = (vec![f32::NAN; tokens * rows], vec![f32::NAN; tokens * 7]);
            cpu.matmul(
                &mut [
                    MatmulJob { weight: &weights[0], bias: Some(&bias), out: &mut out },
                    MatmulJob { weight: &weights[1], bias: None, out: &mut second },
                ],
                &x,
                tokens,
            );
            for (weight, bias, out) in [(&weights[0], Some(&bias), &out), (&weights[1], None, &second)] {
                let mut row = vec![0.0; cols];
                for r in 0..weight.rows() {
                    weight.dequantise_row(r, &mut row);
                    for t in 0..tokens {
                        let x = &x[t * cols..][..cols];
                        let exact: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                        let exact = exact + bias.map_or(0.0, |bias| f64::from(bias[r]));
                        let got = out[t * weight.rows() + r];
                        prop_assert!(
                            (f64::from(got) - exact).abs() <= tolerance(cpu.codes_of(weight).is_some(), &row, x) + 1e-5,
                            "{} {} [{}, {}] row {} token {}: {} is not {}",
                            cpu.isa(), weight.ty(), weight.rows(), cols, r, t, got, exact
                        );
                    }
                }
            }
            same_for_threads(&mut first, &cpu, out)?;
        }
    }

    #[test]
    fn matmul_neurons_agrees_with_f64(
        at in 0..TensorType::WEIGHTS.len(), n in 0usize..300, n_ff in 1usize..500, tokens in 1usize..20, active in 0.0..1.0, seed: u64,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let d = columns(TensorType::WEIGHTS[at], n);
        let weight = random_matrix(TensorType::WEIGHTS[at], n_ff, d, rng);
        let a: Vec<f32> = random_activations(tokens * n_ff, rng)
            .into_iter()
            .map(|a| if rand::RngExt::random_bool(rng, active) { a } else { 0.0 })
            .collect();
        let bias = random_activations(d, rng);
        let sums = ExactSums::new(&weight, 0..n_ff, &a, &bias.repeat(tokens));
        let mut first = None;
        for cpu in every_cpu() {
            let mut out = vec![f32::NAN; tokens * d];
            cpu.matmul_neurons(&weight, Some(&bias), &a, tokens, &mut out);
            sums.check(&out)?;
            same_for_threads(&mut first, &cpu, out)?;
        }
    }
}

#[test]
fn matmul_each_equals_matmul_rows_one_by_one() {
    let rng = &mut StdRng::seed_from_u64(3);
    for ty in TensorType::WEIGHTS {
        let cols = [columns(ty, 40), columns(ty, 75), columns(ty, 3)];
        let weights = cols.map(|cols| random_matrix(ty, 37, cols, rng));
        for (cpu, tokens) in every_cpu().iter().flat_map(|cpu| [(cpu, 1), (cpu, 3)]) {
            let inputs = cols.map(|cols| random_activations(tokens * cols, rng));
            let [mut together, mut alone] = [(); 2].map(|()| vec![f32::NAN; 3 * 37 * tokens]);
            let jobs = weights.iter().zip(together.chunks_exact_mut(37 * tokens));
            let mut jobs: Vec<_> = jobs.map(|(weight, out)| RowsJob { weight, bias: None, rows: None, out }).collect();
            cpu.matmul_each(&mut jobs, &inputs.each_ref().map(|x| &x[..]), tokens);
            for ((weight, out), x) in weights.iter().zip(alone.chunks_exact_mut(37 * tokens)).zip(&inputs) {
                cpu.matmul(&mut [MatmulJob { weight, bias: None, out }], x, tokens);
            }
            assert_eq!(together, alone, "{ty} {} {tokens}", cpu.isa());
        }
    }
}

/// Checks that tokens have the bits that they have alone, in passes of up to [`Cpu::same_bits`]
/// tokens, with all rows and with some rows.
fn assert_bits_of_single_tokens(ty: TensorType, rows: usize, cols: usize, passes: &[usize]) {
    let rng = &mut StdRng::seed_from_u64(9);
    let weight = random_matrix(ty, rows, cols, rng).with_factor(0.75);
    let bias = random_activations(rows, rng);
    let list: Vec<u32> = (0..rows as u32).filter(|row| row % 3 != 1).collect();
    for (cpu, tokens) in every_cpu().iter().flat_map(|cpu| passes.iter().map(move |tokens| (cpu, *tokens))) {
        if cpu.codes_of(&weight).is_some_and(|codes| cpu.sums_in_lanes(codes)) {
            assert_eq!(cpu.same_bits(&weight), FEW_TOKENS, "{ty} {}", cpu.isa());
        }
        let x = random_activations(tokens * cols, rng);
        for chosen in [None, Some(&list[..])] {
            let n = chosen.map_or(rows, <[u32]>::len);
            let product = |x: &[f32], tokens: usize| {
                let mut out = vec![f32::NAN; tokens * n];
                let job = RowsJob { weight: &weight, bias: Some(&bias), rows: chosen, out: &mut out };
                cpu.matmul_rows(&mut [job], x, tokens);
                out
            };
            let alone: Vec<f32> = x.chunks_exact(cols).flat_map(|x| product(x, 1)).collect();
            let together = product(&x, tokens);
            let promised = tokens <= cpu.same_bits(&weight);
            assert!(!promised || together == alone, "{ty} {} {tokens} {:?}", cpu.isa(), cpu.activations());
        }
    }
}

#[test]
fn tokens_have_the_bits_that_they_have_alone() {
    for ty in TensorType::WEIGHTS {
        assert_bits_of_single_tokens(ty, 61, columns(ty, 1100), &[2, 3, 7, 8, 9, 13, 16, 17, 32, 33, 70]);
    }
}

/// A row may be longer than the part that a kernel keeps in a cache.
#[test]
fn tokens_have_the_bits_that_they_have_alone_in_rows_of_thirty_thousand_columns() {
    for ty in TensorType::WEIGHTS {
        assert_bits_of_single_tokens(ty, 5, 30 << 10, &[2, 9, 16, 33]);
    }
}

#[test]
fn prefetch_changes_no_result_and_may_outlive_its_matrices() {
    let rng = &mut StdRng::seed_from_u64(7);
    let weight = random_matrix(TensorType::Q4_0, 600, 512, rng);
    let x = random_activations(512, rng);
    let cpu = Cpu::new(&CpuOptions { threads: Some(3), ..CpuOptions::default() }).unwrap();
    let product = || {
        let mut out = vec![f32::NAN; 600];
        cpu.matmul(&mut [MatmulJob { weight: &weight, bias: None, out: &mut out }], &x, 1);
        out
    };
    let wanted = product();
    for round in 0..200 {
        let other = random_matrix(TensorType::F32, 1 + round % 7, 300, rng);
        match round % 3 {
            0 => cpu.prefetch(&[&other, &weight]),
            1 => cpu.prefetch(&[&weight]),
            _ => cpu.prefetch(&[]),
        }
        drop(other);
        assert_eq!(product(), wanted);
    }
}

#[test]
fn matmul_takes_empty_shapes() {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let weight = Matrix::new(TensorType::F32, 3, 0, Bytes::new(Vec::new())).unwrap();
    let mut out = [f32::NAN; 3];
    cpu.matmul(&mut [MatmulJob { weight: &weight, bias: Some(&[1.0, 2.0, 3.0]), out: &mut out }], &[], 1);
    assert_eq!(out, [1.0, 2.0, 3.0]);
    out.fill(f32::NAN);
    cpu.matmul_each(&mut [RowsJob { weight: &weight, bias: None, rows: None, out: &mut out }], &[&[]], 1);
    assert_eq!(out, [0.0; 3]);
    cpu.matmul(&mut [MatmulJob { weight: &weight, bias: None, out: &mut [] }], &[], 0);
    cpu.matmul_neurons(&weight, None, &[0.0; 3], 1, &mut []);
}

/// The same rows, each between other bytes of a record.
fn in_records(weight: &Matrix) -> Matrix {
    let part = RecordPart { record: weight.row_bytes() + 96, start: 32 };
    let mut bytes = vec![0xa5; weight.rows() * part.record];
    for (row, record) in bytes.chunks_exact_mut(part.record).enumerate() {
        record[part.start..][..weight.row_bytes()].copy_from_slice(weight.row(row));
    }
    let matrix = Matrix::in_records(weight.ty(), weight.cols(), part, &Bytes::new(bytes)).unwrap();
    matrix.with_factor(weight.factor())
}

/// Every product with rows of records equals the product with the same rows side by side.
#[test]
fn rows_of_records_have_the_products_of_contiguous_rows() {
    let rng = &mut StdRng::seed_from_u64(11);
    for ty in TensorType::WEIGHTS {
        let (rows, cols) = (70, columns(ty, 300));
        let contiguous = random_matrix(ty, rows, cols, rng).with_factor(0.75);
        let weights = [&in_records(&contiguous), &contiguous];
        let list: Vec<u32> = (0..rows as u32).filter(|row| row % 3 != 1).collect();
        for tokens in [1, 3, 40] {
            let (x, mut a) = (random_activations(tokens * cols, rng), random_activations(tokens * rows, rng));
            a.iter_mut().step_by(3).for_each(|a| *a = 0.0);
            for cpu in every_cpu() {
                for selected in [None, Some(&list[..])] {
                    let n = selected.map_or(rows, <[u32]>::len);
                    let [got, wanted] = weights.map(|weight| {
                        cpu.prefetch(&[weight]);
                        let mut out = vec![f32::NAN; tokens * n];
                        cpu.matmul_rows(
                            &mut [RowsJob { weight, bias: None, rows: selected, out: &mut out }],
                            &x,
                            tokens,
                        );
                        out
                    });
                    assert_eq!(got, wanted, "{ty} {tokens} {} {:?}", cpu.isa(), cpu.activations());
                }
                let [got, wanted] = weights.map(|weight| {
                    let mut lists = vec![f32::NAN; tokens * list.len()];
                    let of_tokens = x.chunks_exact(cols).zip(lists.chunks_exact_mut(list.len()));
                    let mut jobs: Vec<_> = of_tokens.map(|(x, out)| crate::TokenRows { rows: &list, x, out }).collect();
                    cpu.matmul_lists(weight, None, &mut jobs);
                    let mut sums = vec![f32::NAN; tokens * cols];
                    cpu.matmul_neurons(weight, None, &a, tokens, &mut sums);
                    [lists, sums].concat()
                });
                assert_eq!(got, wanted, "{ty} {tokens} {} {:?}", cpu.isa(), cpu.activations());
            }
        }
    }
}
