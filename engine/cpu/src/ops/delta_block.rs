//! The product form of the gated delta rule for a block of one head's tokens.
//!
//! `G_i` is the sum of the log decays up to token `i`, `S` the state before the block. `delta_j` is
//! as in the one-step form. The state after token `i` is
//!
//! `e^G_i S + sum_{j <= i} e^(G_i - G_j) k_j delta_j^T`
//!
//! Hence
//!
//! `delta_i = beta_i (v_i - e^G_i S^T k_i - sum_{j < i} e^(G_i - G_j) (k_i k_j) delta_j)`
//! `out_i = e^G_i S^T q_i + sum_{j <= i} e^(G_i - G_j) (q_i k_j) delta_j`
//!
//! All sums over elements of keys are matrix products. Only the deltas depend on each other. Every
//! exponent is at most 0.

use super::{
    block_product::{Strided, multiply, rows, rows_mut, sizes},
    delta_net::{BLOCK, DeltaHeadBuffers},
    elementwise::AddScaled,
};
use crate::simd::vector::{Vector, VectorKernel};

/// A block of at most [`BLOCK`] tokens of one head.
pub(super) struct DeltaBlock<'a> {
    /// `[k_dim, v_dim]`
    pub state: &'a mut [f32],
    pub buffers: &'a mut DeltaHeadBuffers,
    /// `[tokens]`
    pub beta: &'a [f32],
    /// `k_dim` and `v_dim`.
    pub sizes: (usize, usize),
}

impl VectorKernel for DeltaBlock<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let DeltaBlock { state, buffers, beta, sizes: (k_dim, v_dim) } = self;
        let n = beta.len();
        let DeltaHeadBuffers { q, k, v: values, out, k_columns, products, decay } = buffers;
        let last = decay[n - 1];
        for (i, k) in k.chunks_exact(k_dim).take(n).enumerate() {
            k.iter().enumerate().for_each(|(at, x)| k_columns[at * BLOCK + i] = *x);
        }

        // Deltas replace the values.
        multiply(v, sizes(n, k_dim, v_dim), rows(k, k_dim), rows(state, v_dim), rows_mut(&mut out[..], v_dim), None);
        multiply(
            v,
            sizes(n, k_dim, n),
            rows(k, k_dim),
            rows(&k_columns[..], BLOCK),
            rows_mut(&mut products[..], BLOCK),
            None,
        );
        for i in 0..n {
            let (before, rest) = values.split_at_mut(i * v_dim);
            let delta = &mut rest[..v_dim];
            AddScaled { x: &mut *delta, y: &out[i * v_dim..][..v_dim], scale: -decay[i].exp() }.run(v);
            for (j, before) in before.chunks_exact(v_dim).enumerate() {
                let scale = -(decay[i] - decay[j]).exp() * products[i * BLOCK + j];
                AddScaled { x: &mut *delta, y: before, scale }.run(v);
            }
            delta.iter_mut().for_each(|x| *x *= beta[i]);
        }

        multiply(
            v,
            sizes(n, k_dim, n),
            rows(q, k_dim),
            rows(&k_columns[..], BLOCK),
            rows_mut(&mut products[..], BLOCK),
            None,
        );
        for (i, q) in q.chunks_exact_mut(k_dim).take(n).enumerate() {
            let factor = decay[i].exp();
            q.iter_mut().for_each(|q| *q *= factor);
            for (j, product) in products[i * BLOCK..][..n].iter_mut().enumerate() {
                *product = if j <= i { *product * (decay[i] - decay[j]).exp() } else { 0.0 };
            }
        }
        multiply(v, sizes(n, k_dim, v_dim), rows(q, k_dim), rows(state, v_dim), rows_mut(&mut out[..], v_dim), None);
        let weights = Strided { data: products, row: BLOCK, col: 1 };
        multiply(v, sizes(n, n, v_dim), weights, rows(&values[..], v_dim), rows_mut(&mut out[..], v_dim), Some(1.0));

        // The state after the block.
        for (j, k) in k.chunks_exact_mut(k_dim).take(n).enumerate() {
            let factor = (last - decay[j]).exp();
            k.iter_mut().for_each(|k| *k *= factor);
        }
        let keys = Strided { data: k, row: 1, col: k_dim };
        multiply(v, sizes(k_dim, n, v_dim), keys, rows(&values[..], v_dim), rows_mut(state, v_dim), Some(last.exp()));
    }
}
