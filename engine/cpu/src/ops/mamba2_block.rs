//! The product form of Mamba-2's scan for a block of one head's tokens.
//!
//! `G_i` is the sum of the log decays up to token `i`, `S` the state before the block, and `u_j =
//! dt_j x_j`. The state after token `i` is
//!
//! `e^G_i S + sum_{j <= i} e^(G_i - G_j) B_j u_j^T`
//!
//! Hence
//!
//! `y_i = e^G_i S^T C_i + sum_{j <= i} e^(G_i - G_j) (C_i B_j) u_j`
//!
//! All sums are matrix products. All heads of a group share the products of `C` and `B`. Every
//! exponent is at most 0.

use super::{
    block_product::{Strided, multiply, rows, rows_mut, sizes},
    mamba2::{BLOCK, Mamba2HeadBuffers},
};
use crate::simd::vector::{Vector, VectorKernel};

/// `B` and `C` of a group's tokens, from their first elements on, and the number of elements from
/// one token to the next.
type Vectors<'a> = (&'a [f32], &'a [f32], usize);

/// Products of `C` and `B` of a block of one group.
#[derive(Debug, Default)]
pub(super) struct GroupProducts {
    /// `[state, BLOCK]`: transposed `B`.
    b_columns: Vec<f32>,
    /// `[tokens, BLOCK]`: `C_i B_j`.
    products: Vec<f32>,
}

impl GroupProducts {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        ((self.b_columns.capacity() + self.products.capacity()) * size_of::<f32>()) as u64
    }

    /// Makes room for vectors of `state` elements.
    pub fn fit(&mut self, state: usize) {
        self.b_columns.resize(state * BLOCK, 0.0);
        self.products.resize(BLOCK * BLOCK, 0.0);
    }
}

/// Computes [`GroupProducts`] for `tokens` tokens and vectors of `state` elements.
pub(super) struct ProductTask<'a> {
    pub products: &'a mut GroupProducts,
    pub vectors: Vectors<'a>,
    pub tokens: usize,
    pub state: usize,
}

impl VectorKernel for ProductTask<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let ProductTask { products: GroupProducts { b_columns, products }, vectors: (b, c, row), tokens: n, state } =
            self;
        for (j, b) in b.chunks(row).take(n).enumerate() {
            b[..state].iter().enumerate().for_each(|(at, x)| b_columns[at * BLOCK + j] = *x);
        }
        let c = Strided { data: c, row, col: 1 };
        multiply(v, sizes(n, state, n), c, rows(&b_columns[..], BLOCK), rows_mut(&mut products[..], BLOCK), None);
    }
}

/// A block of at most [`BLOCK`] tokens of one head.
pub(super) struct Mamba2Block<'a> {
    /// `[state, head_dim]`
    pub state: &'a mut [f32],
    /// The tokens' inputs and decays, and their outputs.
    pub buffers: &'a mut Mamba2HeadBuffers,
    /// Products of the tokens' group.
    pub products: &'a GroupProducts,
    pub vectors: Vectors<'a>,
    /// Number of tokens, elements of `B`, `head_dim`.
    pub sizes: (usize, usize, usize),
}

impl VectorKernel for Mamba2Block<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Mamba2Block { state, buffers, products, vectors: (b, c, row), sizes: (n, size, dim) } = self;
        let Mamba2HeadBuffers { x, out, weights, decay } = buffers;
        let last = decay[n - 1];

        // First the contribution of the state before the block, then that of the block's own
        // tokens.
        let c = Strided { data: c, row, col: 1 };
        multiply(v, sizes(n, size, dim), c, rows(state, dim), rows_mut(&mut out[..], dim), None);
        for (i, out) in out.chunks_exact_mut(dim).take(n).enumerate() {
            let factor = decay[i].exp();
            out.iter_mut().for_each(|y| *y *= factor);
            let products = &products.products[i * BLOCK..][..n];
            for (j, (weight, product)) in weights[i * BLOCK..][..n].iter_mut().zip(products).enumerate() {
                *weight = if j <= i { product * (decay[i] - decay[j]).exp() } else { 0.0 };
            }
        }
        let by_token = Strided { data: weights, row: BLOCK, col: 1 };
        multiply(v, sizes(n, n, dim), by_token, rows(&x[..], dim), rows_mut(&mut out[..], dim), Some(1.0));

        // The state after the block.
        for (j, x) in x.chunks_exact_mut(dim).take(n).enumerate() {
            let factor = (last - decay[j]).exp();
            x.iter_mut().for_each(|x| *x *= factor);
        }
        let b = Strided { data: b, row: 1, col: row };
        multiply(v, sizes(size, n, dim), b, rows(&x[..], dim), rows_mut(state, dim), Some(last.exp()));
    }
}
