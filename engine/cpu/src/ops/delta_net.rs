//! The gated delta rule (Yang et al. 2024): the recurrence of the heads of a gated delta net.
//!
//! A head has a state `S`, `[k_dim, v_dim]`: a memory that queries read and keys correct. With the
//! token's decay `g`, its rate `beta` and its key, query (both of length 1) and value:
//!
//! `S = g S;  delta = beta (v - S^T k);  S = S + k delta^T;  out = S^T q / sqrt(k_dim)`
//!
//! Single tokens use this form. Prompts are computed in blocks of [`BLOCK`] tokens, in the product
//! form of the same paper ([`DeltaBlock`]). The deltas of a block depend on each other only through
//! products of its keys. The state is therefore read and written once per block.

use parking_lot::Mutex;

use super::{HeadTokens, bytes_of, delta_block::DeltaBlock, fit};
use crate::{
    Cpu,
    pool::split_columns,
    simd::vector::{Vector, VectorKernel, dispatch},
};

/// Fewest tokens for which the product form is faster.
const FEW_TOKENS: usize = 4;
/// Tokens of a block of the product form.
pub(super) const BLOCK: usize = 32;
/// Added to the squared length of a key or query before the square root.
const LENGTH_EPS: f32 = 1e-6;

/// Sizes of a gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Heads of queries and keys.
    pub k_heads: usize,
    /// Heads of values, a multiple of `k_heads`. Each has a state.
    pub v_heads: usize,
    /// Elements of a query or key.
    pub k_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
    /// True if value head `h` uses key head `h mod k_heads`. Otherwise it uses `h / (v_heads /
    /// k_heads)`.
    pub interleaved: bool,
}

impl DeltaNetShape {
    /// Elements of a token's queries, keys and values together.
    pub fn qkv(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.values()
    }

    /// Elements of a token's values.
    pub fn values(&self) -> usize {
        self.v_heads * self.v_dim
    }

    /// Elements of the states of all heads.
    pub fn state(&self) -> usize {
        self.v_heads * self.k_dim * self.v_dim
    }

    fn k_head(&self, head: usize) -> usize {
        match self.interleaved {
            true => head % self.k_heads,
            false => head * self.k_heads / self.v_heads,
        }
    }
}

/// Tokens of a gated delta net.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetTokens<'a> {
    /// `[tokens, queries | keys | values]`
    pub qkv: &'a [f32],
    /// Logarithms of the decays, `[tokens, v_heads]`, at most 0.
    pub log_decay: &'a [f32],
    /// `[tokens, v_heads]`
    pub beta: &'a [f32],
}

/// Buffers of [`Cpu::gated_delta_net`], kept between calls.
#[derive(Debug, Default)]
pub struct DeltaNetScratch {
    /// One per worker.
    heads: Vec<Mutex<DeltaHeadBuffers>>,
}

impl DeltaNetScratch {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.heads.iter().map(|head| head.lock().bytes()).sum()
    }
}

/// Rows of one head, for one token or a block.
#[derive(Debug, Default)]
pub(super) struct DeltaHeadBuffers {
    /// `[tokens, k_dim]`, of length 1. Queries are divided by `sqrt(k_dim)`.
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    /// `[tokens, v_dim]`: values, later deltas.
    pub v: Vec<f32>,
    /// `[tokens, v_dim]`
    pub out: Vec<f32>,
    /// `[k_dim, BLOCK]`: transposed keys.
    pub k_columns: Vec<f32>,
    /// `[tokens, BLOCK]`: products of keys with keys, later of queries with keys.
    pub products: Vec<f32>,
    /// Sums of log decays since the beginning of the block.
    pub decay: Vec<f32>,
}

impl DeltaHeadBuffers {
    fn bytes(&self) -> u64 {
        bytes_of([&self.q, &self.k, &self.v, &self.out, &self.k_columns, &self.products, &self.decay])
    }

    fn fit(&mut self, shape: &DeltaNetShape, tokens: usize) {
        fit([
            (&mut self.q, tokens * shape.k_dim),
            (&mut self.k, tokens * shape.k_dim),
            (&mut self.v, tokens * shape.v_dim),
            (&mut self.out, tokens * shape.v_dim),
            (&mut self.k_columns, shape.k_dim * BLOCK),
            (&mut self.products, tokens * BLOCK),
            (&mut self.decay, tokens),
        ]);
    }
}

/// `to = from / sqrt(|from|^2 + eps) * scale`
fn normalise(from: &[f32], scale: f32, to: &mut [f32]) {
    let square: f32 = from.iter().map(|x| x * x).sum();
    let factor = scale / (square + LENGTH_EPS).sqrt();
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
}

/// One token of one head.
struct DeltaStep<'a> {
    /// `[k_dim, v_dim]`
    state: &'a mut [f32],
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    beta: f32,
    out: &'a mut [f32],
}

/// Vectors of a state row that are computed together, so that sums over rows do not wait for each
/// other.
const TOGETHER: usize = 4;

impl VectorKernel for DeltaStep<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let DeltaStep { state, q, k, v: values, decay, beta, out } = self;
        let (dim, wide) = (values.len(), TOGETHER * V::LANES);
        let (factor, rate, zero) = (v.splat(decay), v.splat(beta), v.splat(0.0));
        let mut at = 0;
        while at + wide <= dim {
            let mut memory = [zero; TOGETHER];
            for (row, k) in state.chunks_exact_mut(dim).zip(k) {
                let (row, k) = (&mut row[at..at + wide], v.splat(*k));
                for (i, sum) in memory.iter_mut().enumerate() {
                    let s = v.mul(v.load(&row[i * V::LANES..]), factor);
                    v.store(&mut row[i * V::LANES..], s);
                    *sum = v.mul_add(s, k, *sum);
                }
            }
            let mut delta = memory;
            for (i, delta) in delta.iter_mut().enumerate() {
                *delta = v.mul(rate, v.sub(v.load(&values[at + i * V::LANES..]), *delta));
            }
            let mut sums = [zero; TOGETHER];
            for ((row, k), q) in state.chunks_exact_mut(dim).zip(k).zip(q) {
                let (row, k, q) = (&mut row[at..at + wide], v.splat(*k), v.splat(*q));
                for (i, sum) in sums.iter_mut().enumerate() {
                    let s = v.mul_add(k, delta[i], v.load(&row[i * V::LANES..]));
                    v.store(&mut row[i * V::LANES..], s);
                    *sum = v.mul_add(s, q, *sum);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                v.store(&mut out[at + i * V::LANES..], sum);
            }
            at += wide;
        }
        for at in at..dim {
            let mut memory = 0.0;
            for (row, k) in state.chunks_exact_mut(dim).zip(k) {
                row[at] *= decay;
                memory += row[at] * k;
            }
            let delta = beta * (values[at] - memory);
            let mut sum = 0.0;
            for ((row, k), q) in state.chunks_exact_mut(dim).zip(k).zip(q) {
                row[at] += k * delta;
                sum += row[at] * q;
            }
            out[at] = sum;
        }
    }
}

impl Cpu {
    /// The gated delta rule for all heads of consecutive tokens. `out` is `[tokens, v_heads,
    /// v_dim]`. `state` is `[v_heads, k_dim, v_dim]`, and is updated.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn gated_delta_net(
        &self,
        shape: &DeltaNetShape,
        tokens: &DeltaNetTokens<'_>,
        state: &mut [f32],
        out: &mut [f32],
        scratch: &mut DeltaNetScratch,
    ) {
        let n = tokens.beta.len() / shape.v_heads.max(1);
        assert!(tokens.qkv.len() == n * shape.qkv() && tokens.log_decay.len() == tokens.beta.len());
        assert!(tokens.beta.len() == n * shape.v_heads && out.len() == n * shape.values());
        assert!(state.len() == shape.state() && shape.v_heads.is_multiple_of(shape.k_heads.max(1)));
        if n == 0 || state.is_empty() {
            return;
        }
        scratch.heads.resize_with(self.pool().threads(), Mutex::default);
        let buffers = &scratch.heads;
        // Each head writes to its own columns of `out`.
        let columns = split_columns(out, shape.values(), shape.v_dim);
        let states = state.chunks_exact_mut(shape.k_dim * shape.v_dim);
        let mut heads: Vec<_> = states.zip(columns).enumerate().collect();
        self.for_each_item(&mut heads, n * 2 * shape.state(), |worker, (head, (state, out))| {
            let mut buffers = buffers[worker].lock();
            let block = if n < FEW_TOKENS { 1 } else { BLOCK.min(n) };
            buffers.fit(shape, block);
            for first in (0..n).step_by(block) {
                let count = block.min(n - first);
                self.delta_head(shape, tokens, HeadTokens { head: *head, first, count }, state, &mut buffers);
                for (t, row) in buffers.out.chunks_exact(shape.v_dim).take(count).enumerate() {
                    out.row_mut(first + t).copy_from_slice(row);
                }
            }
        });
    }

    /// Computes some tokens of one head into the buffers' `out`.
    fn delta_head(
        &self,
        shape: &DeltaNetShape,
        tokens: &DeltaNetTokens<'_>,
        HeadTokens { head, first, count }: HeadTokens,
        state: &mut [f32],
        buffers: &mut DeltaHeadBuffers,
    ) {
        let (k_dim, v_dim, k_head) = (shape.k_dim, shape.v_dim, shape.k_head(head));
        let (keys, values) = (shape.k_heads * k_dim, 2 * shape.k_heads * k_dim);
        let scale = 1.0 / (k_dim as f32).sqrt();
        for (t, row) in tokens.qkv.chunks_exact(shape.qkv()).skip(first).take(count).enumerate() {
            normalise(&row[k_head * k_dim..][..k_dim], scale, &mut buffers.q[t * k_dim..][..k_dim]);
            normalise(&row[keys + k_head * k_dim..][..k_dim], 1.0, &mut buffers.k[t * k_dim..][..k_dim]);
            buffers.v[t * v_dim..][..v_dim].copy_from_slice(&row[values + head * v_dim..][..v_dim]);
        }
        let of = |numbers: &[f32], t: usize| numbers[(first + t) * shape.v_heads + head];
        if count < FEW_TOKENS {
            for t in 0..count {
                let step = DeltaStep {
                    state: &mut *state,
                    q: &buffers.q[t * k_dim..][..k_dim],
                    k: &buffers.k[t * k_dim..][..k_dim],
                    v: &buffers.v[t * v_dim..][..v_dim],
                    decay: of(tokens.log_decay, t).exp(),
                    beta: of(tokens.beta, t),
                    out: &mut buffers.out[t * v_dim..][..v_dim],
                };
                dispatch(self.isa(), step);
            }
            return;
        }
        let mut sum = 0.0;
        let mut beta = [0.0; BLOCK];
        for t in 0..count {
            sum += of(tokens.log_decay, t);
            buffers.decay[t] = sum;
            beta[t] = of(tokens.beta, t);
        }
        let (beta, sizes) = (&beta[..count], (k_dim, v_dim));
        dispatch(self.isa(), DeltaBlock { state, buffers, beta, sizes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::{each_cpu, noise};

    /// Plain arithmetic, token by token. Returns the outputs and the final state.
    fn oracle(shape: &DeltaNetShape, tokens: &DeltaNetTokens<'_>, state: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let n = tokens.beta.len() / shape.v_heads;
        let (k_dim, v_dim) = (shape.k_dim, shape.v_dim);
        let mut all: Vec<f64> = state.iter().map(|x| f64::from(*x)).collect();
        let mut out = vec![0.0; n * shape.values()];
        let unit = |x: &[f32]| {
            let square: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            x.iter().map(|x| f64::from(*x) / (square + 1e-6).sqrt()).collect::<Vec<f64>>()
        };
        for t in 0..n {
            let row = &tokens.qkv[t * shape.qkv()..][..shape.qkv()];
            let (q, rest) = row.split_at(shape.k_heads * k_dim);
            let (k, v) = rest.split_at(shape.k_heads * k_dim);
            for head in 0..shape.v_heads {
                let of = if shape.interleaved { head % shape.k_heads } else { head / (shape.v_heads / shape.k_heads) };
                let (q, k) = (unit(&q[of * k_dim..][..k_dim]), unit(&k[of * k_dim..][..k_dim]));
                let state = &mut all[head * k_dim * v_dim..][..k_dim * v_dim];
                let (g, beta) = (tokens.log_decay[t * shape.v_heads + head], tokens.beta[t * shape.v_heads + head]);
                state.iter_mut().for_each(|s| *s *= f64::from(g).exp());
                for i in 0..v_dim {
                    let memory: f64 = (0..k_dim).map(|j| state[j * v_dim + i] * k[j]).sum();
                    let delta = f64::from(beta) * (f64::from(v[head * v_dim + i]) - memory);
                    (0..k_dim).for_each(|j| state[j * v_dim + i] += k[j] * delta);
                    let sum: f64 = (0..k_dim).map(|j| state[j * v_dim + i] * q[j]).sum();
                    out[t * shape.values() + head * v_dim + i] = sum / (k_dim as f64).sqrt();
                }
            }
        }
        (out, all)
    }

    /// Both forms agree with plain arithmetic for any division of the tokens, at strong and weak
    /// decays.
    #[test]
    fn delta_rule_agrees_with_f64_in_pieces() {
        for (k_heads, v_heads, k_dim, v_dim, interleaved) in [
            (2, 4, 16, 16, true),
            (2, 4, 16, 16, false),
            (1, 1, 5, 7, false),
            (1, 2, 128, 128, false),
            (3, 3, 24, 80, true),
        ] {
            let shape = DeltaNetShape { k_heads, v_heads, k_dim, v_dim, interleaved };
            let (n, mut seed) = (75, 7);
            let qkv: Vec<f32> = (0..n * shape.qkv()).map(|_| noise(&mut seed)).collect();
            let log_decay: Vec<f32> = (0..n * v_heads).map(|_| -40.0 * noise(&mut seed).abs().powi(6)).collect();
            let beta: Vec<f32> = (0..n * v_heads).map(|_| noise(&mut seed).abs()).collect();
            let before: Vec<f32> = (0..shape.state()).map(|_| noise(&mut seed)).collect();
            let tokens = DeltaNetTokens { qkv: &qkv, log_decay: &log_decay, beta: &beta };
            let (wanted, after) = oracle(&shape, &tokens, &before);
            for cpu in each_cpu() {
                for piece in [1, 5, 24, 75] {
                    let (mut state, mut out) = (before.clone(), vec![f32::NAN; n * shape.values()]);
                    let mut scratch = DeltaNetScratch::default();
                    for first in (0..n).step_by(piece) {
                        let count = piece.min(n - first);
                        let part = DeltaNetTokens {
                            qkv: &qkv[first * shape.qkv()..][..count * shape.qkv()],
                            log_decay: &log_decay[first * v_heads..][..count * v_heads],
                            beta: &beta[first * v_heads..][..count * v_heads],
                        };
                        let out = &mut out[first * shape.values()..][..count * shape.values()];
                        cpu.gated_delta_net(&shape, &part, &mut state, out, &mut scratch);
                    }
                    for (got, wanted) in out.iter().zip(&wanted).chain(state.iter().zip(&after)) {
                        assert!((f64::from(*got) - wanted).abs() < 1e-4, "{shape:?} {piece}: {got} {wanted}");
                    }
                }
            }
        }
    }
}
