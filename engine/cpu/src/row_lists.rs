//! Products of several tokens, each with its own list of rows, for tokens of different sequences
//! that fire different neurons. Workers visit rows in order, and each token uses its own rows while
//! they are in the second-level cache. The union of the lists is therefore read from memory once,
//! and only requested products are computed.

use smallvec::SmallVec;

use super::{Cpu, matmul::rows_of, paged_reads, row_selection::RowSelection};
use thermocline_formats::format::Matrix;

/// One token's product with selected rows: `out[i] = W[rows[i]] x + bias[rows[i]]`.
#[derive(Debug)]
pub struct TokenRows<'a> {
    /// Row indices, ascending.
    pub rows: &'a [u32],
    /// `[cols]`
    pub x: &'a [f32],
    /// `[rows.len()]`, overwritten.
    pub out: &'a mut [f32],
}

/// A token's part of a worker's rows.
struct OwnRows<'a> {
    token: usize,
    rows: &'a [u32],
    out: &'a mut [f32],
}

/// The number of `rows`, ascending, that are below `end`.
fn below(rows: &[u32], end: usize) -> usize {
    rows.partition_point(|row| (*row as usize) < end)
}

impl Cpu {
    /// Products of every token with its own rows of `weight`. Each row's result equals that of
    /// [`Cpu::matmul_rows`] for the token alone.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn matmul_lists(&self, weight: &Matrix, bias: Option<&[f32]>, tokens: &mut [TokenRows<'_>]) {
        for token in &*tokens {
            assert_eq!(token.x.len(), weight.cols(), "activations of {} columns", weight.cols());
            assert_eq!(token.out.len(), token.rows.len(), "outputs of {} rows", token.rows.len());
        }
        paged_reads::of_tokens(weight, tokens);
        let inputs: SmallVec<[&[f32]; 16]> = tokens.iter().map(|token| token.x).collect();
        self.scratch.with(|scratch| {
            let codes = &mut scratch.rows;
            codes.resize_with(codes.len().max(inputs.len()), Default::default);
            if self.codes_of(weight).is_some() {
                codes.iter_mut().zip(&inputs).for_each(|(codes, x)| codes.fill_for_dots(self.kernels, x));
            }
            let (codes, width) = (&*codes, rows_of(self.chunk_of(weight.byte_len()), weight));
            let mut left: SmallVec<[(&[u32], &mut [f32]); 16]> =
                tokens.iter_mut().map(|token| (token.rows, &mut *token.out)).collect();
            let mut items: Vec<SmallVec<[OwnRows<'_>; 8]>> = Vec::new();
            for end in (0..weight.rows()).step_by(width).map(|first| first + width) {
                let mut item = SmallVec::new();
                for (token, (rows, out)) in left.iter_mut().enumerate() {
                    let n = below(rows, end);
                    if n > 0 {
                        let (own, rest) = rows.split_at(n);
                        let (into, others) = std::mem::take(out).split_at_mut(n);
                        (*rows, *out) = (rest, others);
                        item.push(OwnRows { token, rows: own, out: into });
                    }
                }
                if !item.is_empty() {
                    items.push(item);
                }
            }
            self.pool().for_each(&mut items, |_, item| {
                for OwnRows { token, rows: list, out } in item {
                    self.dot_selected(weight, RowSelection::Listed(list), 0, inputs[*token], &codes[*token], out);
                    weight.scale(out);
                    if let Some(bias) = bias {
                        out.iter_mut().zip(&**list).for_each(|(out, row)| *out += bias[*row as usize]);
                    }
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        RowSum, RowsJob,
        matmul::tests::{columns, every_cpu, random_matrix},
        simd::tests::random_activations,
    };
    use thermocline_formats::quant::TensorType;

    fn lists(rows: usize, rng: &mut StdRng) -> Vec<Vec<u32>> {
        [0.0, 0.05, 0.5, 1.0, 0.3].map(|density| (0..rows as u32).filter(|_| rng.random_bool(density)).collect()).into()
    }

    /// Every token's products with its own rows equal those of the token alone, bit by bit.
    #[test]
    fn products_with_lists_equal_those_of_each_token_alone() {
        let rng = &mut StdRng::seed_from_u64(5);
        for ty in TensorType::WEIGHTS {
            let (rows, cols) = (700, columns(ty, 300));
            let weight = random_matrix(ty, rows, cols, rng);
            let bias = random_activations(rows, rng);
            let lists = lists(rows, rng);
            let inputs: Vec<Vec<f32>> = lists.iter().map(|_| random_activations(cols, rng)).collect();
            for cpu in every_cpu() {
                let mut outs: Vec<Vec<f32>> = lists.iter().map(|list| vec![f32::NAN; list.len()]).collect();
                let tokens = lists.iter().zip(&inputs).zip(&mut outs);
                let mut tokens: Vec<_> = tokens.map(|((rows, x), out)| TokenRows { rows, x, out }).collect();
                cpu.matmul_lists(&weight, Some(&bias), &mut tokens);
                for ((list, x), out) in lists.iter().zip(&inputs).zip(&outs) {
                    let mut alone = vec![f32::NAN; list.len()];
                    let rows = Some(&list[..]);
                    cpu.matmul_rows(&mut [RowsJob { weight: &weight, bias: Some(&bias), rows, out: &mut alone }], x, 1);
                    assert_eq!(*out, alone, "{ty} {}", cpu.isa());
                }
            }
        }
    }

    /// Every token's sum of its own rows equals that of the token alone, bit by bit, for any number
    /// of threads.
    #[test]
    fn sums_of_several_tokens_equal_those_of_each_token_alone() {
        let rng = &mut StdRng::seed_from_u64(6);
        for ty in TensorType::WEIGHTS {
            let (rows, d) = (700, columns(ty, 300));
            let weight = random_matrix(ty, rows, d, rng).with_factor(0.75);
            let lists = lists(rows, rng);
            let mut activations: Vec<Vec<f32>> = lists.iter().map(|list| random_activations(list.len(), rng)).collect();
            activations.iter_mut().flatten().step_by(7).for_each(|a| *a = 0.0);
            let mut first: Option<(crate::Isa, Vec<Vec<f32>>)> = None;
            for cpu in every_cpu() {
                let mut outs: Vec<Vec<f32>> = lists.iter().map(|_| vec![1.0; d]).collect();
                let tokens = lists.iter().zip(&activations).zip(&mut outs);
                let mut sums: Vec<_> =
                    tokens.map(|((rows, a), out)| RowSum { weight: &weight, rows: Some(rows), a, out }).collect();
                cpu.accumulate_sums(&mut sums);
                for ((list, a), out) in lists.iter().zip(&activations).zip(&outs) {
                    let mut alone = vec![1.0; d];
                    cpu.accumulate_rows(&weight, list, a, 1, &mut alone);
                    assert_eq!(*out, alone, "{ty} {}", cpu.isa());
                    // The same sum over all rows, with zero activations for the other rows.
                    let mut all = vec![0.0; rows];
                    list.iter().zip(a).for_each(|(row, a)| all[*row as usize] = *a);
                    alone.fill(1.0);
                    cpu.accumulate_sums(&mut [RowSum { weight: &weight, rows: None, a: &all, out: &mut alone }]);
                    assert_eq!(*out, alone, "{ty} {}, all rows", cpu.isa());
                }
                match &first {
                    Some((isa, other)) if *isa == cpu.isa() => assert_eq!(outs, *other, "threads matter"),
                    _ => first = Some((cpu.isa(), outs)),
                }
            }
        }
    }
}
