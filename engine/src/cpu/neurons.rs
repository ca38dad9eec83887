//! The down projection with neurons as rows: only rows of neurons that fired are read.

use super::{
    Cpu,
    activations::Columns,
    pool::{ColumnsMut, split_columns},
    simd::Grouping,
};
use crate::format::Matrix;

/// Most partial sums of one token. A fixed number, so that the result does not depend on the number of threads.
const PARTS: usize = 16;
/// Fewest neurons worth a partial sum of their own.
const LEAST_PART: usize = 32;
/// Neurons of a panel.
const PANEL_NEURONS: usize = 128;

impl Cpu {
    /// `out[t] = W^T a[t] + bias` where row `i` of `weight` `[n_ff, d]` is neuron `i`'s down column and `a` is
    /// `[tokens, n_ff]`; rows whose activation is zero (for all tokens) are not read. `out` is `[tokens, d]`,
    /// overwritten. The result does not depend on the number of threads.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn matmul_neurons(&self, weight: &Matrix, bias: Option<&[f32]>, a: &[f32], tokens: usize, out: &mut [f32]) {
        let (n_ff, d) = (weight.rows(), weight.cols());
        assert_eq!(a.len(), tokens * n_ff, "activations of {tokens} tokens, {n_ff} neurons");
        assert_eq!(out.len(), tokens * d, "outputs of {tokens} tokens, {d} wide");
        assert!(bias.is_none_or(|bias| bias.len() == d), "biases of {d} outputs");
        if out.is_empty() {
            return;
        }
        self.scratch.with(|scratch| {
            let active = &mut scratch.active;
            active.clear();
            let fires = |i: usize| (0..tokens).any(|t| a[t * n_ff + i] != 0.0);
            active.extend((0..n_ff).filter(|i| fires(*i)).map(|i| i as u32));
            if tokens == 1 {
                return self.accumulate_rows(weight, bias, a, active, scratch.partial.take(PARTS * d), out);
            }
            scratch.float_tiles.fill(self.kernels, self.pool(), a, n_ff, Columns::These(active));
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
                            let src = weight.row(*neuron as usize);
                            let src = &src[first / len * bytes..(first + out.width()) / len * bytes];
                            match Grouping::of(weight.ty()) {
                                Some(_) => kernels.axpy(weight.ty(), src, 1.0, &mut row[..out.width()]),
                                None => kernels.widen(weight.ty(), src, &mut row[..out.width()]),
                            }
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
                    let bias = bias.map(|bias| &bias[first..]);
                    write_out(out, bias, acc, of_side, width, tokens);
                });
            });
        });
    }

    /// One token: every part sums its share of the active rows, then the parts are added in order.
    fn accumulate_rows(
        &self,
        weight: &Matrix,
        bias: Option<&[f32]>,
        a: &[f32],
        active: &[u32],
        partial: &mut [f32],
        out: &mut [f32],
    ) {
        let d = weight.cols();
        let of_part = active.len().div_ceil(PARTS).max(LEAST_PART);
        let mut parts: Vec<_> = active.chunks(of_part).zip(partial.chunks_exact_mut(d)).collect();
        self.pool().for_each(&mut parts, |_, (neurons, sum)| {
            sum.fill(0.0);
            for neuron in *neurons {
                let neuron = *neuron as usize;
                self.kernels.axpy(weight.ty(), weight.row(neuron), a[neuron], sum);
            }
        });
        match bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for (_, sum) in &parts {
            out.iter_mut().zip(sum.iter()).for_each(|(out, sum)| *out += sum);
        }
    }
}

/// Copies what was accumulated, `[sides, tokens (padded), width]`, to the columns of the output.
fn write_out(out: &mut ColumnsMut<'_>, bias: Option<&[f32]>, acc: &[f32], of_side: usize, width: usize, tokens: usize) {
    for token in 0..tokens {
        let row = out.row_mut(token);
        for (side, row) in row.chunks_mut(width).enumerate() {
            row.copy_from_slice(&acc[side * of_side + token * width..][..row.len()]);
        }
        if let Some(bias) = bias {
            row.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
    }
}
