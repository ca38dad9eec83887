//! Products of several tokens, each with rows of its own: tokens of different sequences, for which different neurons fire. Rows are gone
//! through in order, and each token takes its own while they are in the second-level cache: the union of the lists is read from memory
//! once, and nothing is computed that no token wants.

use smallvec::SmallVec;

use super::{
    Cpu,
    matmul::rows_of,
    row_selection::prefetch_distance,
    simd::{AXPY_ROWS, DOT_ROWS, GatheredRow, ScaledRow},
};
use crate::format::Matrix;

/// Parts of the rows that are summed by themselves. A fixed number, so that results do not depend on the number of threads.
const PARTS: usize = 16;
/// Elements of sums that one worker adds up.
const SUM_ELEMENTS: usize = 1 << 14;

/// One token's product with some rows: `out[i] = W[rows[i]] x + bias[rows[i]]`.
#[derive(Debug)]
pub struct TokenRows<'a> {
    /// Row numbers, ascending.
    pub rows: &'a [u32],
    /// `[cols]`
    pub x: &'a [f32],
    /// `[rows.len()]`, overwritten.
    pub out: &'a mut [f32],
}

/// One token's sum of some rows of a neuron-major matrix: `out += sum over i of a[i] W[rows[i]]`.
#[derive(Debug)]
pub struct TokenSum<'a> {
    /// Row numbers, ascending.
    pub rows: &'a [u32],
    /// Their activations.
    pub a: &'a [f32],
    /// `[cols]`
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
    /// Products of every token with its own rows of `weight`. A row's result is that of [`Cpu::matmul_rows`] for the token alone.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn matmul_lists(&self, weight: &Matrix, bias: Option<&[f32]>, tokens: &mut [TokenRows<'_>]) {
        for token in &*tokens {
            assert_eq!(token.x.len(), weight.cols(), "activations of {} columns", weight.cols());
            assert_eq!(token.out.len(), token.rows.len(), "outputs of {} rows", token.rows.len());
        }
        let inputs: SmallVec<[&[f32]; 16]> = tokens.iter().map(|token| token.x).collect();
        self.scratch.with(|scratch| {
            let (codes, ty) = (&mut scratch.rows, self.codes_of(weight));
            codes.resize_with(codes.len().max(inputs.len()), Default::default);
            if ty.is_some() {
                codes.iter_mut().zip(&inputs).for_each(|(codes, x)| codes.fill(self.kernels, x));
            }
            let (codes, width) = (&*codes, rows_of(self.chunk_of(weight.data().len()), weight));
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
                    let (x, row) = (inputs[*token], &codes[*token]);
                    let gathered = |at: usize| GatheredRow {
                        row: weight.row(list[at] as usize),
                        ahead: prefetch_distance(weight, at, list.len(), DOT_ROWS, |at| list[at] as usize),
                    };
                    let one = |of: GatheredRow<'_>, out: &mut f32| {
                        let out = std::slice::from_mut(out);
                        match ty {
                            Some(ty) => self.kernels.dot_codes(ty, of.row, row.row(), of.ahead, out),
                            None => self.kernels.dot_floats(weight.encoding(), of.row, x, of.ahead, out),
                        }
                    };
                    let (groups, rest) = out.as_chunks_mut::<DOT_ROWS>();
                    let mut at = 0;
                    for out in groups {
                        match ty {
                            Some(ty) => {
                                let rows: [_; DOT_ROWS] = std::array::from_fn(|row| gathered(at + row));
                                self.kernels.dot_gathered(ty, &rows, row.row(), out);
                            }
                            None => out.iter_mut().zip(at..).for_each(|(out, at)| one(gathered(at), out)),
                        }
                        at += DOT_ROWS;
                    }
                    rest.iter_mut().zip(at..).for_each(|(out, at)| one(gathered(at), out));
                    weight.scale(out);
                    if let Some(bias) = bias {
                        out.iter_mut().zip(&**list).for_each(|(out, row)| *out += bias[*row as usize]);
                    }
                }
            });
        });
    }

    /// Adds to every token's output the sum of its own rows of `weight`. The result does not depend on the number of threads.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn accumulate_lists(&self, weight: &Matrix, tokens: &mut [TokenSum<'_>]) {
        let d = weight.cols();
        for token in &*tokens {
            assert_eq!(token.a.len(), token.rows.len(), "activations of {} neurons", token.rows.len());
            assert_eq!(token.out.len(), d, "an output {d} wide");
        }
        if d == 0 || tokens.is_empty() {
            return;
        }
        let ends = part_ends(weight.rows(), tokens);
        self.scratch.with(|scratch| {
            let count = tokens.len();
            let sums = scratch.partial.take(PARTS * count * d);
            let mut parts: Vec<_> = sums.chunks_exact_mut(count * d).zip(&ends).enumerate().collect();
            let lists: SmallVec<[(&[u32], &[f32]); 16]> = tokens.iter().map(|token| (token.rows, token.a)).collect();
            self.pool().for_each(&mut parts, |_, (part, (sums, end))| {
                let start = part.checked_sub(1).map_or(0, |before| ends[before]);
                for ((rows, a), sum) in lists.iter().zip(sums.chunks_exact_mut(d)) {
                    sum.fill(0.0);
                    let range = below(rows, start)..below(rows, **end);
                    let (rows, a) = (&rows[range.clone()], &a[range]);
                    let row = |at: usize| rows[at] as usize;
                    let multiple = |at: usize| ScaledRow {
                        row: weight.row(row(at)),
                        a: weight.factor() * a[at],
                        ahead: prefetch_distance(weight, at, rows.len(), AXPY_ROWS, row),
                    };
                    let mut at = 0;
                    while at + AXPY_ROWS <= rows.len() {
                        let group: [_; AXPY_ROWS] = std::array::from_fn(|i| multiple(at + i));
                        self.kernels.axpy(weight.encoding(), &group, sum);
                        at += AXPY_ROWS;
                    }
                    (at..rows.len()).for_each(|at| self.kernels.axpy(weight.encoding(), &[multiple(at)], sum));
                }
            });
            drop(parts);
            let sums = &*sums;
            let width = (SUM_ELEMENTS / PARTS).min(d).max(1);
            let outs = tokens.iter_mut().enumerate();
            let mut columns: Vec<_> = outs
                .flat_map(|(token, it)| it.out.chunks_mut(width).enumerate().map(move |(at, out)| (token, at, out)))
                .collect();
            self.pool().for_each(&mut columns, |_, (token, at, out)| {
                for part in sums.chunks_exact(count * d) {
                    let sum = &part[*token * d + *at * width..][..out.len()];
                    out.iter_mut().zip(sum).for_each(|(out, sum)| *out += sum);
                }
            });
        });
    }
}

/// The end of each part of `rows` rows: parts have about as many rows of all tokens.
fn part_ends(rows: usize, tokens: &[TokenSum<'_>]) -> [usize; PARTS] {
    const BLOCK: usize = 32;
    let mut counts = vec![0u32; rows.div_ceil(BLOCK)];
    for row in tokens.iter().flat_map(|token| token.rows) {
        counts[*row as usize / BLOCK] += 1;
    }
    let all: u32 = counts.iter().sum();
    let (mut ends, mut part, mut seen) = ([rows; PARTS], 0, 0);
    for (block, count) in counts.iter().enumerate() {
        seen += count;
        while part + 1 < PARTS && u64::from(seen) * PARTS as u64 >= u64::from(all) * (part as u64 + 1) {
            ends[part] = ((block + 1) * BLOCK).min(rows);
            part += 1;
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        cpu::{
            RowsJob,
            matmul::tests::{columns, every_cpu, random_matrix},
            simd::tests::random_activations,
        },
        quant::tests::WEIGHTS as TYPES,
    };

    fn lists(rows: usize, rng: &mut StdRng) -> Vec<Vec<u32>> {
        [0.0, 0.05, 0.5, 1.0, 0.3].map(|density| (0..rows as u32).filter(|_| rng.random_bool(density)).collect()).into()
    }

    /// Every token's products with its own rows are those of the token alone, bit by bit.
    #[test]
    fn products_with_lists_equal_those_of_each_token_alone() {
        let rng = &mut StdRng::seed_from_u64(5);
        for ty in TYPES {
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

    /// Sums of lists agree with those of each token alone, and do not depend on the number of threads.
    #[test]
    fn sums_of_lists_agree_with_those_of_each_token_alone() {
        let rng = &mut StdRng::seed_from_u64(6);
        for ty in TYPES {
            let (rows, d) = (500, columns(ty, 300));
            let weight = random_matrix(ty, rows, d, rng);
            let lists = lists(rows, rng);
            let activations: Vec<Vec<f32>> = lists.iter().map(|list| random_activations(list.len(), rng)).collect();
            let mut first: Option<(crate::cpu::Isa, Vec<Vec<f32>>)> = None;
            for cpu in every_cpu() {
                let mut outs: Vec<Vec<f32>> = lists.iter().map(|_| vec![1.0; d]).collect();
                let tokens = lists.iter().zip(&activations).zip(&mut outs);
                let mut tokens: Vec<_> = tokens.map(|((rows, a), out)| TokenSum { rows, a, out }).collect();
                cpu.accumulate_lists(&weight, &mut tokens);
                for ((list, a), out) in lists.iter().zip(&activations).zip(&outs) {
                    let mut alone = vec![1.0; d];
                    cpu.accumulate_rows(&weight, list, a, 1, &mut alone);
                    for (out, alone) in out.iter().zip(&alone) {
                        assert!((out - alone).abs() <= 1e-3 * (1.0 + alone.abs()), "{ty}: {out} {alone}");
                    }
                }
                match &first {
                    Some((isa, other)) if *isa == cpu.isa() => assert_eq!(outs, *other, "threads matter"),
                    _ => first = Some((cpu.isa(), outs)),
                }
            }
        }
    }
}
