//! Row (or column) selection of a product, and the prefetch distance during a row's read.

use std::ops::Range;

use super::simd::prefetch;
use thermocline_formats::format::Matrix;

/// Prefetch distance in bytes for rows in order. On a Zen 4, distances from 4 to 8 KiB were about
/// equally fast, 3 KiB was slower, and so was 16 KiB with short rows.
pub(super) const AHEAD: usize = 8 << 10;
/// Prefetch distance in bytes of rows for gathered rows. The processor's own prefetcher does not
/// see them. Lines that arrive too early replace lines that are needed first.
const AHEAD_ROWS: usize = 8 << 10;
/// Prefetch distance in bytes of rows for both ends of a gathered row. Its pages are then in the
/// translation buffer before its lines are prefetched.
const AHEAD_ENDS: usize = 64 << 10;

/// All rows or columns of a matrix, or a list of them in this order.
#[derive(Debug, Clone, Copy)]
pub(super) enum RowSelection<'a> {
    /// All rows or columns.
    All,
    /// The rows or columns with these indices.
    Listed(&'a [u32]),
}

impl<'a> RowSelection<'a> {
    /// Number of selected rows, of `all` rows.
    pub fn len(self, all: usize) -> usize {
        match self {
            RowSelection::All => all,
            RowSelection::Listed(list) => list.len(),
        }
    }

    /// Index of the `at`th selected row.
    pub fn get(self, at: usize) -> usize {
        match self {
            RowSelection::All => at,
            RowSelection::Listed(list) => list[at] as usize,
        }
    }

    /// Runs of contiguous rows of `weight` among the selected rows `first + rows`: the part of
    /// `rows`, and its weights.
    pub fn runs<'w>(
        self,
        weight: &'w Matrix,
        first: usize,
        rows: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, &'w [u8])> + use<'a, 'w> {
        let longest = match self {
            RowSelection::All if weight.is_contiguous() => rows.len().max(1),
            _ => 1,
        };
        rows.clone().step_by(longest).map(move |start| {
            let run = start..rows.end.min(start + longest);
            let from = self.get(first + start) * weight.stride();
            (run.clone(), &weight.data()[from..from + run.len() * weight.row_bytes()])
        })
    }
}

/// Prefetch distance in bytes during the read of gathered row `at` of `n`. It leads to the row that
/// follows [`AHEAD_ROWS`] bytes of rows later, and at least `least` rows later. 0 if there is no
/// such row. Also prefetches both ends of the row that follows [`AHEAD_ENDS`] bytes of rows later.
pub(super) fn prefetch_distance(
    weight: &Matrix,
    at: usize,
    n: usize,
    least: usize,
    row: impl Fn(usize) -> usize,
) -> isize {
    let later = |bytes: usize| Some(at + (bytes / weight.row_bytes().max(1)).max(least)).filter(|later| *later < n);
    if let Some(far) = later(AHEAD_ENDS) {
        let ends = weight.row(row(far)).as_ptr_range();
        prefetch(ends.start);
        prefetch(ends.end.wrapping_sub(1));
    }
    later(AHEAD_ROWS).map_or(0, |near| (row(near) as isize - row(at) as isize) * weight.stride() as isize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        RowSum, RowsJob,
        matmul::tests::{ExactSums, columns, every_cpu, random_matrix, same_for_threads},
        simd::tests::{random_activations, tolerance},
    };
    use thermocline_formats::quant::TensorType;

    /// A random selection of `n` rows, ascending. `density` is the fraction selected, 0 to 1.
    fn some_rows(n: usize, density: f64, rng: &mut StdRng) -> Vec<u32> {
        (0..n as u32).filter(|_| rng.random_bool(density)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn matmul_rows_agrees_with_f64(
            a in 0..TensorType::WEIGHTS.len(), b in 0..TensorType::WEIGHTS.len(), n in 0usize..300, rows in 1usize..200,
            tokens in prop_oneof![1usize..3, 2usize..20], density in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0], seed: u64,
        ) {
            let rng = &mut StdRng::seed_from_u64(seed);
            let cols = columns(TensorType::WEIGHTS[a], n).next_multiple_of(TensorType::WEIGHTS[b].block_len());
            let weights = [random_matrix(TensorType::WEIGHTS[a], rows, cols, rng), random_matrix(TensorType::WEIGHTS[b], rows, cols, rng)];
            let x = random_activations(tokens * cols, rng);
            let bias = random_activations(rows, rng);
            let list = some_rows(rows, density, rng);
            let mut first = None;
            for cpu in every_cpu() {
                let mut outs = [vec![f32::NAN; tokens * list.len()], vec![f32::NAN; tokens * list.len()]];
                let [out, second] = &mut outs;
                let mut jobs = [
                    RowsJob { weight: &weights[0], bias: Some(&bias), rows: Some(&list), out },
                    RowsJob { weight: &weights[1], bias: None, rows: Some(&list), out: second },
                ];
                cpu.matmul_rows(&mut jobs, &x, tokens);
                let mut row = vec![0.0; cols];
                for (weight, bias, out) in [(&weights[0], Some(&bias), &outs[0]), (&weights[1], None, &outs[1])] {
                    for (at, r) in list.iter().enumerate() {
                        weight.dequantise_row(*r as usize, &mut row);
                        for t in 0..tokens {
                            let x = &x[t * cols..][..cols];
                            let exact: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                            let exact = exact + bias.map_or(0.0, |bias| f64::from(bias[*r as usize]));
                            let got = f64::from(out[t * list.len() + at]);
                            let allowed = tolerance(cpu.codes_of(weight).is_some(), &row, x) + 1e-5;
                            prop_assert!((got - exact).abs() <= allowed, "{} row {}: {} is not {}", weight.ty(), r, got, exact);
                        }
                    }
                }
                same_for_threads(&mut first, &cpu, outs.concat())?;
            }
        }

        #[test]
        fn accumulate_rows_agrees_with_f64(
            at in 0..TensorType::WEIGHTS.len(), n in 0usize..300, n_ff in 1usize..700, tokens in prop_oneof![Just(1usize), 2usize..9],
            density in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0], seed: u64,
        ) {
            let rng = &mut StdRng::seed_from_u64(seed);
            let d = columns(TensorType::WEIGHTS[at], n);
            let weight = random_matrix(TensorType::WEIGHTS[at], n_ff, d, rng);
            let list = some_rows(n_ff, density, rng);
            // Some selected rows have an activation of zero.
            let mut a = random_activations(tokens * list.len(), rng);
            a.iter_mut().for_each(|a| *a = if rng.random_bool(0.2) { 0.0 } else { *a });
            let before = random_activations(tokens * d, rng);
            let sums = ExactSums::new(&weight, list.iter().map(|row| *row as usize), &a, &before);
            let mut first = None;
            for cpu in every_cpu() {
                let mut out = before.clone();
                cpu.accumulate_rows(&weight, &list, &a, tokens, &mut out);
                sums.check(&out)?;
                same_for_threads(&mut first, &cpu, out)?;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// A product of several jobs equals the products of each job and of each row alone.
        #[test]
        fn matmul_rows_of_several_jobs_equals_each_job_alone(
            types in prop::collection::vec(0..TensorType::WEIGHTS.len(), 1..6), n in 0usize..300, n_ff in 1usize..200,
            density in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0], seed: u64,
        ) {
            let rng = &mut StdRng::seed_from_u64(seed);
            let block = types.iter().map(|ty| TensorType::WEIGHTS[*ty].block_len()).max().unwrap();
            let d = (1 + n).next_multiple_of(block);
            let weights: Vec<Matrix> = types.iter().map(|ty| random_matrix(TensorType::WEIGHTS[*ty], n_ff, d, rng)).collect();
            let lists: Vec<Option<Vec<u32>>> =
                (0..weights.len()).map(|at| (at != 1).then(|| some_rows(n_ff, density, rng))).collect();
            let len = |list: &Option<Vec<u32>>| list.as_ref().map_or(n_ff, Vec::len);
            let a: Vec<Vec<f32>> = lists.iter().map(|list| random_activations(len(list), rng)).collect();
            let x = random_activations(d, rng);
            for cpu in every_cpu() {
                // Products, some of whole matrices.
                let mut outs: Vec<Vec<f32>> = lists.iter().map(|list| vec![f32::NAN; len(list)]).collect();
                let jobs = weights.iter().zip(&lists).zip(&mut outs);
                let mut jobs: Vec<_> = jobs
                    .map(|((weight, rows), out)| RowsJob { weight, bias: None, rows: rows.as_deref(), out })
                    .collect();
                cpu.matmul_rows(&mut jobs, &x, 1);
                for ((weight, list), out) in weights.iter().zip(&lists).zip(&outs) {
                    let mut all = vec![f32::NAN; n_ff];
                    cpu.matmul(&mut [crate::MatmulJob { weight, bias: None, out: &mut all }], &x, 1);
                    let wanted: Vec<f32> = match list {
                        Some(list) => list.iter().map(|row| all[*row as usize]).collect(),
                        None => all,
                    };
                    prop_assert_eq!(out, &wanted);
                }
                // Sums.
                let before = random_activations(d, rng);
                let mut outs = vec![before.clone(); weights.len()];
                let sums = weights.iter().zip(&lists).zip(&a).zip(&mut outs);
                let mut sums: Vec<_> = sums
                    .map(|(((weight, rows), a), out)| RowSum { weight, rows: rows.as_deref(), a, out })
                    .collect();
                cpu.accumulate_sums(&mut sums);
                for (((weight, list), a), out) in weights.iter().zip(&lists).zip(&a).zip(&outs) {
                    let row = |at: usize| list.as_ref().map_or(at, |list| list[at] as usize);
                    ExactSums::new(weight, (0..a.len()).map(row), a, &before).check(out)?;
                }
            }
        }
    }

    #[test]
    fn prefetch_distance_reaches_the_rows_to_come() {
        let weight =
            random_matrix(thermocline_formats::quant::TensorType::F32, 40, 1024, &mut StdRng::seed_from_u64(1));
        let list: Vec<u32> = (0..20).map(|i| 2 * i).collect();
        let row = |at: usize| list[at] as usize;
        // Two rows of 4 KiB are 8 KiB. The listed rows are twice as far apart in memory.
        assert_eq!(prefetch_distance(&weight, 3, list.len(), 1, row), 4 * 4096);
        assert_eq!(prefetch_distance(&weight, 3, list.len(), 3, row), 6 * 4096);
        assert_eq!(prefetch_distance(&weight, 18, list.len(), 1, row), 0);
        let backwards = |at: usize| 39 - at;
        assert_eq!(prefetch_distance(&weight, 0, 40, 1, backwards), -2 * 4096);
    }
}
