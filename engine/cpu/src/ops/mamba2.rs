//! The scan of Mamba-2 (Dao and Gu 2024): the recurrence of a selective state space with one decay
//! per head.
//!
//! A head has a state `S`, `[state, head_dim]`. With the token's step `dt`, its decay `g = e^(a
//! dt)`, its input `x` and its group's vectors `B` and `C`:
//!
//! `S = g S + B (dt x)^T;  y = S^T C + d x`
//!
//! Single tokens use this form. Prompts are computed in blocks of [`BLOCK`] tokens, in the product
//! form of the same paper ([`Mamba2Block`]). All heads of a group share the products of `B` and
//! `C`. The state is read and written once per block.

use parking_lot::Mutex;

use super::{
    HeadTokens, bytes_of,
    elementwise::AddScaled,
    fit,
    mamba2_block::{GroupProducts, Mamba2Block, ProductTask},
};
use crate::{
    Cpu,
    pool::split_columns,
    simd::vector::{Vector, VectorKernel, dispatch},
};

/// Fewest tokens for which the product form is faster.
const FEW_TOKENS: usize = 4;
/// Tokens of a block of the product form.
pub(super) const BLOCK: usize = 32;

/// Sizes of a Mamba-2 scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Shape {
    /// Heads. Each has a state.
    pub heads: usize,
    /// Elements of a head's input.
    pub head_dim: usize,
    /// Groups of consecutive heads that share `B` and `C`. Their number divides `heads`.
    pub groups: usize,
    /// Elements of `B` and of `C`.
    pub state: usize,
}

impl Mamba2Shape {
    /// Elements of a token's inputs, over all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of a token's inputs, `B` and `C` together, which are the channels of the
    /// convolution.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    /// Elements of the states of all heads.
    pub fn state_len(&self) -> usize {
        self.inner() * self.state
    }

    fn group(&self, head: usize) -> usize {
        head * self.groups / self.heads
    }

    /// First elements of a group's `B` and `C` in a token's row.
    fn vectors(&self, group: usize) -> [usize; 2] {
        [0, self.groups].map(|before| self.inner() + (before + group) * self.state)
    }
}

/// Tokens of a Mamba-2 scan.
#[derive(Debug, Clone, Copy)]
pub struct Mamba2Tokens<'a> {
    /// `[tokens, x | B | C]`
    pub xbc: &'a [f32],
    /// Steps, `[tokens, heads]`, at least 0.
    pub dt: &'a [f32],
    /// `[heads]`, at most 0: the log decay per unit of the step.
    pub a: &'a [f32],
    /// `[heads]`: the factor of an input that is added to its output directly.
    pub d: &'a [f32],
}

/// Buffers of [`Cpu::mamba2_scan`], kept between calls.
#[derive(Debug, Default)]
pub struct Mamba2Scratch {
    /// `[blocks, groups]`
    products: Vec<GroupProducts>,
    /// One per worker.
    heads: Vec<Mutex<Mamba2HeadBuffers>>,
}

impl Mamba2Scratch {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let products: u64 = self.products.iter().map(GroupProducts::bytes).sum();
        products + self.heads.iter().map(|head| head.lock().bytes()).sum::<u64>()
    }
}

/// Rows of one head, for one token or a block.
#[derive(Debug, Default)]
pub(super) struct Mamba2HeadBuffers {
    /// Inputs times their steps, `[tokens, head_dim]`.
    pub x: Vec<f32>,
    /// `[tokens, head_dim]`
    pub out: Vec<f32>,
    /// Products of `C` and `B`, times decays, `[tokens, BLOCK]`.
    pub weights: Vec<f32>,
    /// Sums of log decays since the beginning of the block, `[tokens]`.
    pub decay: Vec<f32>,
}

impl Mamba2HeadBuffers {
    fn bytes(&self) -> u64 {
        bytes_of([&self.x, &self.out, &self.weights, &self.decay])
    }

    fn fit(&mut self, head_dim: usize, tokens: usize) {
        fit([
            (&mut self.x, tokens * head_dim),
            (&mut self.out, tokens * head_dim),
            (&mut self.weights, tokens * BLOCK),
            (&mut self.decay, tokens),
        ]);
    }
}

/// One token of one head.
struct Mamba2Step<'a> {
    /// `[state, head_dim]`
    state: &'a mut [f32],
    b: &'a [f32],
    c: &'a [f32],
    /// Input times the step, `[head_dim]`.
    x: &'a [f32],
    decay: f32,
    out: &'a mut [f32],
}

/// Vectors of a state row that are computed together, so that sums over rows do not wait for each
/// other.
const TOGETHER: usize = 4;

impl VectorKernel for Mamba2Step<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Mamba2Step { state, b, c, x, decay, out } = self;
        let (dim, wide) = (x.len(), TOGETHER * V::LANES);
        let factor = v.splat(decay);
        let mut at = 0;
        while at + wide <= dim {
            let mut inputs = [factor; TOGETHER];
            for (i, input) in inputs.iter_mut().enumerate() {
                *input = v.load(&x[at + i * V::LANES..]);
            }
            let mut sums = [v.splat(0.0); TOGETHER];
            for ((row, b), c) in state.chunks_exact_mut(dim).zip(b).zip(c) {
                let (row, b, c) = (&mut row[at..at + wide], v.splat(*b), v.splat(*c));
                for (i, (sum, input)) in sums.iter_mut().zip(inputs).enumerate() {
                    let row = &mut row[i * V::LANES..(i + 1) * V::LANES];
                    let s = v.mul_add(b, input, v.mul(v.load(row), factor));
                    v.store(row, s);
                    *sum = v.mul_add(s, c, *sum);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                v.store(&mut out[at + i * V::LANES..], sum);
            }
            at += wide;
        }
        for at in at..dim {
            let mut sum = 0.0;
            for ((row, b), c) in state.chunks_exact_mut(dim).zip(b).zip(c) {
                row[at] = row[at] * decay + b * x[at];
                sum += row[at] * c;
            }
            out[at] = sum;
        }
    }
}

impl Cpu {
    /// The scan of all heads of consecutive tokens. `out` is `[tokens, heads, head_dim]`. `state`
    /// is `[heads, state, head_dim]`, and is updated.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn mamba2_scan(
        &self,
        shape: &Mamba2Shape,
        tokens: &Mamba2Tokens<'_>,
        state: &mut [f32],
        out: &mut [f32],
        scratch: &mut Mamba2Scratch,
    ) {
        let n = tokens.dt.len() / shape.heads.max(1);
        assert!(tokens.dt.len() == n * shape.heads && tokens.xbc.len() == n * shape.channels());
        assert!(tokens.a.len() == shape.heads && tokens.d.len() == shape.heads && out.len() == n * shape.inner());
        assert!(state.len() == shape.state_len() && shape.heads.is_multiple_of(shape.groups.max(1)));
        if n == 0 || state.is_empty() {
            return;
        }
        scratch.heads.resize_with(self.pool().threads(), Mutex::default);
        let few = n < FEW_TOKENS;
        let block = if few { 1 } else { BLOCK.min(n) };
        if !few {
            self.products(shape, tokens, n, &mut scratch.products);
        }
        let (buffers, products) = (&scratch.heads, &scratch.products);
        // Each head writes to its own columns of `out`.
        let columns = split_columns(out, shape.inner(), shape.head_dim);
        let states = state.chunks_exact_mut(shape.state * shape.head_dim);
        let mut heads: Vec<_> = states.zip(columns).enumerate().collect();
        self.for_each_item(&mut heads, n * 2 * shape.state_len(), |worker, (head, (state, out))| {
            let (head, mut buffers) = (*head, buffers[worker].lock());
            buffers.fit(shape.head_dim, block);
            for (at, first) in (0..n).step_by(block).enumerate() {
                let count = block.min(n - first);
                let part = HeadTokens { head, first, count };
                match few {
                    true => self.mamba2_step(shape, tokens, part, state, &mut buffers),
                    false => {
                        let products = &products[at * shape.groups + shape.group(head)];
                        self.mamba2_block(shape, tokens, part, products, state, &mut buffers);
                    }
                }
                let inputs = tokens.xbc.chunks_exact(shape.channels()).skip(first);
                for (t, (y, input)) in buffers.out.chunks_exact(shape.head_dim).zip(inputs).take(count).enumerate() {
                    let x = &input[head * shape.head_dim..][..shape.head_dim];
                    let out = out.row_mut(first + t);
                    out.copy_from_slice(y);
                    dispatch(self.isa(), AddScaled { x: out, y: x, scale: tokens.d[head] });
                }
            }
        });
    }

    /// Computes the products of `C` and `B` for every block and group.
    fn products(&self, shape: &Mamba2Shape, tokens: &Mamba2Tokens<'_>, n: usize, products: &mut Vec<GroupProducts>) {
        let blocks = n.div_ceil(BLOCK);
        if products.len() < blocks * shape.groups {
            products.resize_with(blocks * shape.groups, GroupProducts::default);
        }
        let channels = shape.channels();
        let mut products: Vec<_> = products[..blocks * shape.groups].iter_mut().enumerate().collect();
        self.pool().for_each(&mut products, |_, (at, products)| {
            let (first, [b, c]) = (*at / shape.groups * BLOCK, shape.vectors(*at % shape.groups));
            let rows = &tokens.xbc[first * channels..];
            products.fit(shape.state);
            let vectors = (&rows[b..], &rows[c..], channels);
            let tokens = BLOCK.min(n - first);
            dispatch(self.isa(), ProductTask { products, vectors, tokens, state: shape.state });
        });
    }

    /// Computes some tokens of one head, one by one. The buffers' `out` receives the last token's
    /// output.
    fn mamba2_step(
        &self,
        shape: &Mamba2Shape,
        tokens: &Mamba2Tokens<'_>,
        HeadTokens { head, first, count }: HeadTokens,
        state: &mut [f32],
        buffers: &mut Mamba2HeadBuffers,
    ) {
        let [b, c] = shape.vectors(shape.group(head));
        for token in first..first + count {
            let row = &tokens.xbc[token * shape.channels()..][..shape.channels()];
            let dt = tokens.dt[token * shape.heads + head];
            let x = &mut buffers.x[..shape.head_dim];
            x.iter_mut().zip(&row[head * shape.head_dim..]).for_each(|(to, x)| *to = dt * x);
            let (b, c) = (&row[b..][..shape.state], &row[c..][..shape.state]);
            let out = &mut buffers.out[..shape.head_dim];
            dispatch(self.isa(), Mamba2Step { state, b, c, x, decay: (dt * tokens.a[head]).exp(), out });
        }
    }

    /// Computes some tokens of one head at once, into the buffers' `out`.
    fn mamba2_block(
        &self,
        shape: &Mamba2Shape,
        tokens: &Mamba2Tokens<'_>,
        HeadTokens { head, first, count }: HeadTokens,
        products: &GroupProducts,
        state: &mut [f32],
        buffers: &mut Mamba2HeadBuffers,
    ) {
        let (channels, dim) = (shape.channels(), shape.head_dim);
        let rows = &tokens.xbc[first * channels..];
        let mut sum = 0.0;
        let inputs = buffers.x.chunks_exact_mut(dim).zip(rows.chunks_exact(channels));
        for (t, (x, row)) in inputs.take(count).enumerate() {
            let dt = tokens.dt[(first + t) * shape.heads + head];
            sum += dt * tokens.a[head];
            buffers.decay[t] = sum;
            x.iter_mut().zip(&row[head * dim..]).for_each(|(to, x)| *to = dt * x);
        }
        let [b, c] = shape.vectors(shape.group(head));
        let vectors = (&rows[b..], &rows[c..], channels);
        let sizes = (count, shape.state, dim);
        dispatch(self.isa(), Mamba2Block { state, buffers, products, vectors, sizes });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::tests::{each_cpu, noise};

    /// Inputs of a scan.
    struct Case {
        shape: Mamba2Shape,
        xbc: Vec<f32>,
        dt: Vec<f32>,
        a: Vec<f32>,
        d: Vec<f32>,
        before: Vec<f32>,
    }

    impl Case {
        /// Random inputs. Steps range from almost none to steps that erase the state.
        fn new(shape: Mamba2Shape, n: usize, mut seed: u64) -> Self {
            let mut noises = |n: usize| -> Vec<f32> { (0..n).map(|_| noise(&mut seed)).collect() };
            Case {
                shape,
                xbc: noises(n * shape.channels()),
                dt: noises(n * shape.heads).into_iter().map(|x| 4.0 * x.abs().powi(5)).collect(),
                a: noises(shape.heads).into_iter().map(|x| -8.0 * x.abs()).collect(),
                d: noises(shape.heads),
                before: noises(shape.state_len()),
            }
        }

        fn tokens(&self, first: usize, count: usize) -> Mamba2Tokens<'_> {
            let (channels, heads) = (self.shape.channels(), self.shape.heads);
            Mamba2Tokens {
                xbc: &self.xbc[first * channels..][..count * channels],
                dt: &self.dt[first * heads..][..count * heads],
                a: &self.a,
                d: &self.d,
            }
        }

        /// Outputs and the final state of a scan, `piece` tokens at a time.
        fn scan(&self, cpu: &Cpu, n: usize, piece: usize) -> (Vec<f32>, Vec<f32>) {
            let (mut state, mut out) = (self.before.clone(), vec![f32::NAN; n * self.shape.inner()]);
            let mut scratch = Mamba2Scratch::default();
            for first in (0..n).step_by(piece) {
                let count = piece.min(n - first);
                let out = &mut out[first * self.shape.inner()..][..count * self.shape.inner()];
                cpu.mamba2_scan(&self.shape, &self.tokens(first, count), &mut state, out, &mut scratch);
            }
            (out, state)
        }

        /// Plain arithmetic, token by token. Returns the outputs and the final state.
        fn oracle(&self, n: usize) -> (Vec<f64>, Vec<f64>) {
            let Mamba2Shape { heads, head_dim, groups, state: size } = self.shape;
            let mut all: Vec<f64> = self.before.iter().map(|x| f64::from(*x)).collect();
            let mut out = vec![0.0; n * self.shape.inner()];
            for t in 0..n {
                let row = &self.xbc[t * self.shape.channels()..][..self.shape.channels()];
                let (x, rest) = row.split_at(heads * head_dim);
                let (b, c) = rest.split_at(groups * size);
                for head in 0..heads {
                    let first = head / (heads / groups) * size;
                    let dt = f64::from(self.dt[t * heads + head]);
                    let decay = (dt * f64::from(self.a[head])).exp();
                    for p in 0..head_dim {
                        let x = f64::from(x[head * head_dim + p]);
                        let mut y = f64::from(self.d[head]) * x;
                        for i in 0..size {
                            let state = &mut all[(head * size + i) * head_dim + p];
                            *state = decay * *state + dt * x * f64::from(b[first + i]);
                            y += *state * f64::from(c[first + i]);
                        }
                        out[(t * heads + head) * head_dim + p] = y;
                    }
                }
            }
            (out, all)
        }
    }

    fn shapes() -> impl Strategy<Value = Mamba2Shape> {
        let sizes = (1usize..4, 1usize..4, 1usize..70, 1usize..40);
        sizes.prop_map(|(groups, each, head_dim, state)| Mamba2Shape { heads: groups * each, head_dim, groups, state })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn mamba2_scan_agrees_with_f64_in_pieces(shape in shapes(), n in 1usize..80, piece in 1usize..80, seed: u64) {
            let case = Case::new(shape, n, seed);
            let (wanted, after) = case.oracle(n);
            for cpu in each_cpu() {
                let (out, state) = case.scan(&cpu, n, piece);
                for (got, wanted) in out.iter().zip(&wanted).chain(state.iter().zip(&after)) {
                    let bound = 2e-4 * (1.0 + wanted.abs());
                    prop_assert!((f64::from(*got) - wanted).abs() < bound, "{shape:?} {piece}: {got} {wanted}");
                }
            }
        }
    }

    #[test]
    fn mamba2_scan_chunked_equals_stepwise() {
        let n = 200;
        for (heads, head_dim, groups, state) in [(8, 16, 2, 16), (4, 64, 1, 128), (3, 7, 3, 5), (2, 80, 2, 24)] {
            let case = Case::new(Mamba2Shape { heads, head_dim, groups, state }, n, 7);
            for cpu in each_cpu() {
                let (wanted, after) = case.scan(&cpu, n, 1);
                for piece in [5, 24, 64, 200] {
                    let (out, state) = case.scan(&cpu, n, piece);
                    for (got, wanted) in out.iter().zip(&wanted).chain(state.iter().zip(&after)) {
                        assert!((got - wanted).abs() < 2e-4 * (1.0 + wanted.abs()), "{piece}: {got} {wanted}");
                    }
                }
            }
        }
    }
}
