//! Sums of scaled rows, `y = sum a[i] W[i]`, each row a neuron's down column: only rows of neurons that fired are read.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Cpu, Scratch,
    pool::{ColumnsMut, split_columns},
    row_selection::{RowSelection, prefetch_distance},
    simd::{AXPY_ROWS, ScaledRow},
};
use crate::format::Matrix;

/// Most partial sums of one token. A fixed number, so that the result does not depend on the number of threads.
const PARTS: usize = 16;
/// Fewest neurons worth a partial sum of their own.
const LEAST_PART: usize = 32;
/// Elements of partial sums that one worker adds up.
const SUM_ELEMENTS: usize = 1 << 14;
/// Neurons of a panel.
const PANEL_NEURONS: usize = 128;

/// A sum of rows of a neuron-major matrix for one token: `factor * sum over i of a[i] W[rows[i]]`.
#[derive(Debug, Clone, Copy)]
pub struct RowSum<'a> {
    /// `[n_ff, d]`
    pub weight: &'a Matrix,
    /// Row numbers; `None` for all rows.
    pub rows: Option<&'a [u32]>,
    /// Activations of those rows. Where one is zero its row is not read.
    pub a: &'a [f32],
    /// Factor of the whole sum, as a router weight.
    pub factor: f32,
}

impl Cpu {
    /// `out[t] = W^T a[t] + bias` where row `i` of `weight` `[n_ff, d]` is neuron `i`'s down column and `a` is
    /// `[tokens, n_ff]`; rows whose activation is zero (for all tokens) are not read. `out` is `[tokens, d]`,
    /// overwritten. The result does not depend on the number of threads. Returns how many rows were read.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn matmul_neurons(
        &self,
        weight: &Matrix,
        bias: Option<&[f32]>,
        a: &[f32],
        tokens: usize,
        out: &mut [f32],
    ) -> usize {
        assert!(bias.is_none_or(|bias| bias.len() == weight.cols()), "biases of {} outputs", weight.cols());
        match bias {
            Some(bias) => out.chunks_exact_mut(bias.len().max(1)).for_each(|out| out.copy_from_slice(bias)),
            None => out.fill(0.0),
        }
        self.add_neurons(weight, RowSelection::All, a, tokens, out)
    }

    /// `out[t] += sum over i of a[t, i] W[rows[i]]`: some rows of a matrix `[n_ff, d]` that has one per neuron, `a` being
    /// `[tokens, rows.len()]` and `out` `[tokens, d]`. Rows whose activation is zero (for all tokens) are not read. The result
    /// does not depend on the number of threads. Returns how many rows were read.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn accumulate_rows(&self, weight: &Matrix, rows: &[u32], a: &[f32], tokens: usize, out: &mut [f32]) -> usize {
        self.add_neurons(weight, RowSelection::Listed(rows), a, tokens, out)
    }

    /// `out += all sums`, `[d]`, for one token: as one piece of work, so that workers are busy however short each list is. The
    /// result does not depend on the number of threads. Returns how many rows were read.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn accumulate_sums(&self, sums: &[RowSum<'_>], out: &mut [f32]) -> usize {
        for sum in sums {
            let n = sum.rows.map_or(sum.weight.rows(), <[u32]>::len);
            assert_eq!(sum.a.len(), n, "activations of {n} neurons");
            assert_eq!(out.len(), sum.weight.cols(), "an output {} wide", sum.weight.cols());
        }
        if out.is_empty() {
            return 0;
        }
        self.scratch.with(|scratch| self.add_one(sums, scratch, out))
    }

    fn add_neurons(
        &self,
        weight: &Matrix,
        selection: RowSelection<'_>,
        a: &[f32],
        tokens: usize,
        out: &mut [f32],
    ) -> usize {
        let (n, d) = (selection.len(weight.rows()), weight.cols());
        assert_eq!(a.len(), tokens * n, "activations of {tokens} tokens, {n} neurons");
        assert_eq!(out.len(), tokens * d, "outputs of {tokens} tokens, {d} wide");
        if out.is_empty() || n == 0 {
            return 0;
        }
        if tokens == 1 {
            let rows = if let RowSelection::Listed(rows) = selection { Some(rows) } else { None };
            return self.accumulate_sums(&[RowSum { weight, rows, a, factor: 1.0 }], out);
        }
        self.scratch.with(|scratch| {
            let lists = &mut scratch.firing;
            lists.count(self.isa, a, n);
            if lists.are_short() {
                self.add_firing(weight, selection, a, lists, out);
                return lists.active().len();
            }
            let active = lists.active();
            scratch.float_tiles.fill(self.kernels, self.pool(), a, n, RowSelection::Listed(active));
            let (kernels, tiles) = (self.kernels, &scratch.float_tiles);
            let (width, tile_tokens) = (kernels.panel_rows(), kernels.float_tokens());
            // As many columns at a time as whole blocks and whole panels need.
            let block = weight.ty().block_len().max(width);
            let mut columns: Vec<_> = split_columns(out, d, block).into_iter().enumerate().collect();
            self.pool().for_each(&mut columns, |_, (at, out)| {
                let first = *at * block;
                self.panels.with(|scratch| {
                    let sides = out.width().div_ceil(width);
                    let n_tiles = tokens.div_ceil(tile_tokens);
                    let of_side = n_tiles * tile_tokens * width;
                    let acc = scratch.acc.take(sides * of_side);
                    acc.fill(0.0);
                    for (chunk, neurons) in active.chunks(PANEL_NEURONS).enumerate() {
                        let of_panel = width * neurons.len();
                        let panels = scratch.floats.take(sides * of_panel);
                        let row = scratch.widened.take(sides * width);
                        for (k, neuron) in neurons.iter().enumerate() {
                            row.fill(0.0);
                            let bytes = weight.ty().block_bytes();
                            let len = weight.ty().block_len();
                            let src = weight.row(selection.get(*neuron as usize));
                            let src = &src[first / len * bytes..(first + out.width()) / len * bytes];
                            kernels.widen(weight.encoding(), src, &mut row[..out.width()]);
                            weight.scale(row);
                            for (side, row) in row.chunks_exact(width).enumerate() {
                                panels[side * of_panel + k * width..][..width].copy_from_slice(row);
                            }
                        }
                        let sides = panels.chunks_exact(of_panel).zip(acc.chunks_exact_mut(of_side));
                        for (panel, acc) in sides {
                            for (tile, acc) in acc.chunks_exact_mut(tile_tokens * width).enumerate() {
                                let x = tiles.tile(tile, chunk * PANEL_NEURONS, neurons.len());
                                kernels.tile_floats(panel, x, acc);
                            }
                        }
                    }
                    add_out(out, acc, of_side, width, tokens);
                });
            });
            active.len()
        })
    }

    /// One token: every part sums its range of a matrix's active rows, then the parts are added in order.
    fn add_one(&self, sums: &[RowSum<'_>], scratch: &mut Scratch, out: &mut [f32]) -> usize {
        let d = out.len();
        let active = &mut scratch.active;
        active.clear();
        let mut ends: SmallVec<[usize; 8]> = SmallVec::new();
        for sum in sums {
            active.extend(sum.a.iter().zip(0..).filter(|(a, _)| **a != 0.0).map(|(_, i)| i));
            ends.push(active.len());
        }
        let of_part = active.len().div_ceil(PARTS).max(LEAST_PART);
        let partial = scratch.partial.take((PARTS + sums.len()) * d);
        let mut parts: Vec<SumPart<'_>> = Vec::with_capacity(PARTS + sums.len());
        let (mut start, mut room) = (0, partial.chunks_exact_mut(d));
        for (of, end) in sums.iter().zip(ends) {
            let of_matrix = &active[start..end];
            start = end;
            let firsts = (0..of_matrix.len()).step_by(of_part);
            parts.extend(firsts.zip(&mut room).map(|(first, sum)| SumPart {
                of,
                active: of_matrix,
                neurons: first..of_matrix.len().min(first + of_part),
                sum,
            }));
        }
        self.pool().for_each(&mut parts, |_, SumPart { of, active, neurons, sum }| {
            sum.fill(0.0);
            let selection = of.rows.map_or(RowSelection::All, RowSelection::Listed);
            let row = |at: usize| selection.get(active[at] as usize);
            let multiple = |at: usize| ScaledRow {
                row: of.weight.row(row(at)),
                a: of.weight.factor() * of.factor * of.a[active[at] as usize],
                ahead: prefetch_distance(of.weight, at, active.len(), AXPY_ROWS, row),
            };
            let mut at = neurons.start;
            while at + AXPY_ROWS <= neurons.end {
                let group: [_; AXPY_ROWS] = std::array::from_fn(|i| multiple(at + i));
                self.kernels.axpy(of.weight.encoding(), &group, sum);
                at += AXPY_ROWS;
            }
            (at..neurons.end).for_each(|at| self.kernels.axpy(of.weight.encoding(), &[multiple(at)], sum));
        });
        let width = (SUM_ELEMENTS / parts.len().max(1)).max(1);
        let mut columns: Vec<_> = out.chunks_mut(width).enumerate().collect();
        self.pool().for_each(&mut columns, |_, (at, out)| {
            for part in &parts {
                out.iter_mut().zip(&part.sum[*at * width..]).for_each(|(out, sum)| *out += sum);
            }
        });
        active.len()
    }
}

/// Some of a matrix's active rows, which one worker sums.
struct SumPart<'a> {
    of: &'a RowSum<'a>,
    /// All of the matrix's, as places in its list.
    active: &'a [u32],
    neurons: Range<usize>,
    /// `[d]`
    sum: &'a mut [f32],
}

/// Adds what was accumulated, `[sides, tokens (padded), width]`, to the columns of the output.
fn add_out(out: &mut ColumnsMut<'_>, acc: &[f32], of_side: usize, width: usize, tokens: usize) {
    for token in 0..tokens {
        for (side, out) in out.row_mut(token).chunks_mut(width).enumerate() {
            let sums = &acc[side * of_side + token * width..];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
    }
}
