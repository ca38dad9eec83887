//! Sums of rows, each row a neuron's share of the output: only rows of neurons that fired are read.

use super::{
    Cpu,
    picked::{Picked, distance},
    pool::{ColumnsMut, split_columns},
    simd::{AXPY_ROWS, Multiple},
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
        self.add_neurons(weight, Picked::All, a, tokens, out)
    }

    /// `out[t] += sum over i of a[t, i] W[rows[i]]`: some rows of a matrix `[n_ff, d]` that has one per neuron, `a` being
    /// `[tokens, rows.len()]` and `out` `[tokens, d]`. Rows whose activation is zero (for all tokens) are not read. The result
    /// does not depend on the number of threads. Returns how many rows were read.
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn accumulate_rows(&self, weight: &Matrix, rows: &[u32], a: &[f32], tokens: usize, out: &mut [f32]) -> usize {
        self.add_neurons(weight, Picked::These(rows), a, tokens, out)
    }

    fn add_neurons(&self, weight: &Matrix, picked: Picked<'_>, a: &[f32], tokens: usize, out: &mut [f32]) -> usize {
        let (n, d) = (picked.len(weight.rows()), weight.cols());
        assert_eq!(a.len(), tokens * n, "activations of {tokens} tokens, {n} neurons");
        assert_eq!(out.len(), tokens * d, "outputs of {tokens} tokens, {d} wide");
        if out.is_empty() || n == 0 {
            return 0;
        }
        self.scratch.with(|scratch| {
            let active = &mut scratch.active;
            active.clear();
            let fires = |i: usize| (0..tokens).any(|t| a[t * n + i] != 0.0);
            active.extend((0..n).filter(|i| fires(*i)).map(|i| i as u32));
            if tokens == 1 {
                self.add_one(weight, picked, a, active, scratch.partial.take(PARTS * d), out);
                return active.len();
            }
            scratch.float_tiles.fill(self.kernels, self.pool(), a, n, Picked::These(active));
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
                            let src = weight.row(picked.get(*neuron as usize));
                            let src = &src[first / len * bytes..(first + out.width()) / len * bytes];
                            kernels.widen(weight.ty(), src, &mut row[..out.width()]);
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

    /// One token: every part sums its share of the active rows, then the parts are added in order.
    fn add_one(
        &self,
        weight: &Matrix,
        picked: Picked<'_>,
        a: &[f32],
        active: &[u32],
        partial: &mut [f32],
        out: &mut [f32],
    ) {
        let d = weight.cols();
        let of_part = active.len().div_ceil(PARTS).max(LEAST_PART);
        let mut parts: Vec<_> = active.chunks(of_part).zip(partial.chunks_exact_mut(d)).enumerate().collect();
        self.pool().for_each(&mut parts, |_, (part, (neurons, sum))| {
            sum.fill(0.0);
            let row = |at: usize| picked.get(active[at] as usize);
            let multiple = |at: usize| Multiple {
                row: weight.row(row(at)),
                a: a[active[at] as usize],
                ahead: distance(weight, at, active.len(), AXPY_ROWS, row),
            };
            let (first, end) = (*part * of_part, *part * of_part + neurons.len());
            let mut at = first;
            while at + AXPY_ROWS <= end {
                let group: [_; AXPY_ROWS] = std::array::from_fn(|i| multiple(at + i));
                self.kernels.axpy(weight.ty(), &group, sum);
                at += AXPY_ROWS;
            }
            (at..end).for_each(|at| self.kernels.axpy(weight.ty(), &[multiple(at)], sum));
        });
        let width = (SUM_ELEMENTS / parts.len().max(1)).max(1);
        let mut columns: Vec<_> = out.chunks_mut(width).enumerate().collect();
        self.pool().for_each(&mut columns, |_, (at, out)| {
            for (_, (_, sum)) in &parts {
                out.iter_mut().zip(&sum[*at * width..]).for_each(|(out, sum)| *out += sum);
            }
        });
    }
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
