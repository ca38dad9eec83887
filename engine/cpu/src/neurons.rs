//! Sums of scaled rows, `y = sum a[i] W[i]`. Each row is a neuron's down column. Only the rows of
//! neurons that fired are read.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Cpu, Scratch, paged_reads,
    pool::{ColumnsMut, split_columns},
    row_selection::{RowSelection, prefetch_distance},
    simd::{AXPY_ROWS, ScaledRow},
};
use thermocline_formats::format::Matrix;

/// Most parts of a matrix's rows. Each part has its own partial sums.
const PARTS: usize = 32;
/// Fewest rows of a part.
const LEAST_PART: usize = 128;
/// Elements of partial sums that one worker adds up.
const SUM_ELEMENTS: usize = 1 << 14;
/// Neurons of a panel.
const PANEL_NEURONS: usize = 128;

/// A token's sum over rows of a neuron-major matrix: `out += sum over i of a[i] W[rows[i]]`.
#[derive(Debug)]
pub struct RowSum<'a> {
    /// `[n_ff, d]`
    pub weight: &'a Matrix,
    /// Row indices, ascending. `None` for all rows.
    pub rows: Option<&'a [u32]>,
    /// Activations of these rows. A row whose activation is zero is not read.
    pub a: &'a [f32],
    /// `[d]`
    pub out: &'a mut [f32],
}

impl Cpu {
    /// `out[t] = W^T a[t] + bias`. Row `i` of `weight`, `[n_ff, d]`, is neuron `i`'s down column,
    /// and `a` is `[tokens, n_ff]`. Rows whose activation is zero for all tokens are not read.
    /// `out` is `[tokens, d]` and overwritten. The result does not depend on the number of threads.
    /// Returns the number of rows read.
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

    /// `out[t] += sum over i of a[t, i] W[rows[i]]`. `rows` are ascending rows of `weight`, `[n_ff,
    /// d]`, which has one row per neuron. `a` is `[tokens, rows.len()]`, `out` is `[tokens, d]`.
    /// Rows whose activation is zero for all tokens are not read. The result does not depend on the
    /// number of threads. Returns the number of rows read.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn accumulate_rows(&self, weight: &Matrix, rows: &[u32], a: &[f32], tokens: usize, out: &mut [f32]) -> usize {
        self.add_neurons(weight, RowSelection::Listed(rows), a, tokens, out)
    }

    /// Adds up all `sums` as one piece of work, so that workers stay busy even if each sum is
    /// short. If consecutive sums share a matrix, its rows are read once for all of them.
    ///
    /// The order of a sum depends only on its rows and activations. First the firing rows of each
    /// part of the matrix are summed, then the parts. A token's result is therefore bit-identical
    /// alone and in a batch, for any number of threads.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn accumulate_sums(&self, sums: &mut [RowSum<'_>]) {
        for RowSum { weight, rows, a, out } in &*sums {
            let n = rows.map_or(weight.rows(), <[u32]>::len);
            assert_eq!(a.len(), n, "activations of {n} neurons");
            assert_eq!(out.len(), weight.cols(), "an output {} wide", weight.cols());
            debug_assert!(rows.is_none_or(|rows| rows.is_sorted()), "rows in order");
        }
        paged_reads::of_sums(sums);
        self.scratch.with(|Scratch { active, partial, .. }| {
            active.clear();
            let mut ends: SmallVec<[usize; 32]> = SmallVec::new();
            for sum in &*sums {
                active.extend((0..).zip(sum.a).filter(|(_, a)| **a != 0.0).map(|(at, _)| at));
                ends.push(active.len());
            }
            let (mut lists, mut outs): (SmallVec<[FiringRows<'_>; 32]>, SmallVec<[&mut [f32]; 32]>) =
                Default::default();
            for (at, (RowSum { weight, rows, a, out }, end)) in sums.iter_mut().zip(&ends).enumerate() {
                let active = &active[at.checked_sub(1).map_or(0, |before| ends[before])..*end];
                let selection = rows.map_or(RowSelection::All, RowSelection::Listed);
                lists.push(FiringRows { weight, selection, a, active });
                outs.push(out);
            }
            let mut parts = parts_of(&lists);
            let room = parts.iter().map(SumPart::len).sum();
            let mut rest = partial.take(room);
            for part in &mut parts {
                (part.sums, rest) = rest.split_at_mut(part.len());
            }
            self.pool().for_each(&mut parts, |_, part| part.fill(self));
            let width = (SUM_ELEMENTS / PARTS).max(1);
            let columns = |(at, out): (usize, _)| <[f32]>::chunks_mut(out, width).enumerate().map(move |it| (at, it));
            let mut columns: Vec<_> = outs.into_iter().enumerate().flat_map(columns).collect();
            self.pool().for_each(&mut columns, |_, (list, (at, out))| {
                for sum in parts.iter().filter_map(|part| part.sum_of(*list)) {
                    out.iter_mut().zip(&sum[*at * width..]).for_each(|(out, sum)| *out += sum);
                }
            });
        });
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
            self.accumulate_sums(&mut [RowSum { weight, rows, a, out }]);
            return a.iter().filter(|a| **a != 0.0).count();
        }
        self.scratch.with(|scratch| {
            let lists = &mut scratch.firing;
            lists.count(self.isa, a, n);
            paged_reads::of_active(weight, selection, lists.active());
            if lists.are_short() {
                self.add_firing(weight, selection, a, lists, out);
                return lists.active().len();
            }
            let active = lists.active();
            scratch.float_tiles.fill(self.kernels, self.pool(), a, n, RowSelection::Listed(active));
            let (kernels, tiles) = (self.kernels, &scratch.float_tiles);
            let (width, tile_tokens) = (kernels.panel_rows, kernels.float_tokens);
            // Whole blocks and whole panels need this many columns at a time.
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
                            kernels.widen(weight.weight_type(), src, &mut row[..out.width()]);
                            weight.scale(row);
                            for (side, row) in row.chunks_exact(width).enumerate() {
                                panels[side * of_panel + k * width..][..width].copy_from_slice(row);
                            }
                        }
                        let sides = panels.chunks_exact(of_panel).zip(acc.chunks_exact_mut(of_side));
                        for (panel, acc) in sides {
                            for (tile, acc) in acc.chunks_exact_mut(tile_tokens * width).enumerate() {
                                let x = tiles.tile(tile, chunk * PANEL_NEURONS, neurons.len());
                                (kernels.tile_floats)(panel, x, acc);
                            }
                        }
                    }
                    add_out(out, acc, of_side, width, tokens);
                });
            });
            active.len()
        })
    }
}

/// The rows of a matrix whose neurons fire for a token.
#[derive(Clone, Copy)]
struct FiringRows<'a> {
    weight: &'a Matrix,
    selection: RowSelection<'a>,
    /// Activations of the selected rows.
    a: &'a [f32],
    /// Indices of the firing rows among the selected rows, ascending.
    active: &'a [u32],
}

impl FiringRows<'_> {
    /// Row index of firing row `at`.
    fn row(&self, at: usize) -> usize {
        self.selection.get(self.active[at] as usize)
    }

    /// Range of the firing rows that are in `rows` of the matrix.
    fn among(&self, rows: &Range<usize>) -> Range<usize> {
        let below = |end: usize| self.active.partition_point(|at| self.selection.get(*at as usize) < end);
        below(rows.start)..below(rows.end)
    }

    /// Adds multiples of firing rows to `sum`, in groups from the first row on.
    fn add(&self, cpu: &Cpu, firing: Range<usize>, sum: &mut [f32]) {
        let multiple = |at: usize| ScaledRow {
            row: self.weight.row(self.row(at)),
            a: self.weight.factor() * self.a[self.active[at] as usize],
            ahead: prefetch_distance(self.weight, at, self.active.len(), AXPY_ROWS, |at| self.row(at)),
        };
        let mut at = firing.start;
        while at + AXPY_ROWS <= firing.end {
            let group: [_; AXPY_ROWS] = std::array::from_fn(|i| multiple(at + i));
            cpu.kernels.axpy(self.weight.weight_type(), &group, sum);
            at += AXPY_ROWS;
        }
        (at..firing.end).for_each(|at| cpu.kernels.axpy(self.weight.weight_type(), &[multiple(at)], sum));
    }
}

/// A part of a matrix's rows, and for each token the sum of the part's firing rows.
struct SumPart<'l, 's> {
    rows: Range<usize>,
    /// Index and rows of the tokens for which any of the part's rows fire.
    lists: SmallVec<[(usize, FiringRows<'l>); 1]>,
    /// `[lists, d]`
    sums: &'s mut [f32],
}

impl SumPart<'_, '_> {
    /// Number of elements of the sums.
    fn len(&self) -> usize {
        self.lists.iter().map(|(_, list)| list.weight.cols()).sum()
    }

    /// Computes the sums, one token after the other, while the rows are in the cache.
    fn fill(&mut self, cpu: &Cpu) {
        let Some(d) = self.lists.first().map(|(_, list)| list.weight.cols()) else { return };
        for ((_, list), sum) in self.lists.iter().zip(self.sums.chunks_exact_mut(d.max(1))) {
            sum.fill(0.0);
            list.add(cpu, list.among(&self.rows), sum);
        }
    }

    /// The sum of list `number`, if any of its rows fire in this part.
    fn sum_of(&self, number: usize) -> Option<&[f32]> {
        let at = self.lists.iter().position(|(at, _)| *at == number)?;
        let d = self.sums.len() / self.lists.len();
        Some(&self.sums[at * d..][..d])
    }
}

/// The parts of the matrices of `lists` in which any row fires. Their sums have no memory yet.
fn parts_of<'l, 's>(lists: &[FiringRows<'l>]) -> Vec<SumPart<'l, 's>> {
    let (mut parts, mut first) = (Vec::with_capacity(PARTS), 0);
    for tokens in lists.chunk_by(|a, b| std::ptr::eq(a.weight, b.weight)) {
        let n = tokens[0].weight.rows();
        let width = n.div_ceil(PARTS).max(LEAST_PART);
        for start in (0..n).step_by(width) {
            let rows = start..n.min(start + width);
            let firing = (first..).zip(tokens.iter().copied()).filter(|(_, list)| !list.among(&rows).is_empty());
            let lists: SmallVec<_> = firing.collect();
            if !lists.is_empty() {
                parts.push(SumPart { rows, lists, sums: &mut [] });
            }
        }
        first += tokens.len();
    }
    parts
}

/// Adds the accumulated sums, `[sides, tokens (padded), width]`, to the columns of the output.
fn add_out(out: &mut ColumnsMut<'_>, acc: &[f32], of_side: usize, width: usize, tokens: usize) {
    for token in 0..tokens {
        for (side, out) in out.row_mut(token).chunks_mut(width).enumerate() {
            let sums = &acc[side * of_side + token * width..];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
    }
}
