//! Products of weights and activations.

use super::Cpu;
use crate::format::Matrix;

/// One product among several that share their input.
#[derive(Debug)]
pub struct MatmulJob<'a> {
    /// `[rows, cols]` weights.
    pub weight: &'a Matrix,
    /// Added to every output row, `[rows]`.
    pub bias: Option<&'a [f32]>,
    /// `[tokens, rows]`, overwritten.
    pub out: &'a mut [f32],
}

impl Cpu {
    /// `out[t] = W x[t] + bias` for every job; `x` is `[tokens, cols]`, the same for all jobs.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn matmul(&self, jobs: &mut [MatmulJob<'_>], x: &[f32], tokens: usize) {
        for job in jobs {
            let (rows, cols) = (job.weight.rows(), job.weight.cols());
            assert_eq!(x.len(), tokens * cols);
            assert_eq!(job.out.len(), tokens * rows);
            let mut row = vec![0.0; cols];
            for r in 0..rows {
                job.weight.dequantise_row(r, &mut row);
                for t in 0..tokens {
                    let dot: f32 = row.iter().zip(&x[t * cols..][..cols]).map(|(w, x)| w * x).sum();
                    job.out[t * rows + r] = dot + job.bias.map_or(0.0, |bias| bias[r]);
                }
            }
        }
    }

    /// `out[t] = W^T a[t] + bias` where row `i` of `weight` `[n_ff, d]` is neuron `i`'s down column and `a` is
    /// `[tokens, n_ff]`; rows whose activation is zero are not read. `out` is `[tokens, d]`, overwritten.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn matmul_neurons(&self, weight: &Matrix, bias: Option<&[f32]>, a: &[f32], tokens: usize, out: &mut [f32]) {
        let (n_ff, d) = (weight.rows(), weight.cols());
        assert_eq!(a.len(), tokens * n_ff);
        assert_eq!(out.len(), tokens * d);
        for token in out.chunks_exact_mut(d) {
            match bias {
                Some(bias) => token.copy_from_slice(bias),
                None => token.fill(0.0),
            }
        }
        let mut row = vec![0.0; d];
        for i in 0..n_ff {
            if (0..tokens).all(|t| a[t * n_ff + i] == 0.0) {
                continue;
            }
            weight.dequantise_row(i, &mut row);
            for t in 0..tokens {
                for (out, w) in out[t * d..][..d].iter_mut().zip(&row) {
                    *out += a[t * n_ff + i] * w;
                }
            }
        }
    }
}
