//! The gated delta rule, token by token. Each value head has a state `S` `[k_dim, v_dim]`, which
//! decays, is corrected with a key and is read with a query: `S = decay * S`,
//! `S = S + k (rate * (v - S^T k))^T`, `out = S^T q`. The device writes the state back. Queries,
//! keys and rates come from `delta_inputs`.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, loud_noise, noise, sizes, wide},
    limits::SCAN_ROWS,
    params::params,
};

params! {
    /// `delta_net`, grid (columns of the state in groups of `COLUMNS`; `v_heads`)
    DeltaNet {
        /// Tokens of the chunk.
        tokens: u32,
        /// Heads of queries and keys.
        k_heads: u32,
        /// Heads of values, a multiple of `k_heads`.
        v_heads: u32,
        /// Elements of a value.
        v_dim: u32,
        /// Elements from one token's queries, keys and values to the next's.
        qkv_pitch: u32,
        /// Elements from one token's rates to the next's.
        rates_pitch: u32,
        /// Offset of the decays in a row of rates.
        decay_at: u32,
        /// Offset of the rates of the delta rule in a row of rates.
        rate_at: u32,
        /// Elements from one token's outputs to the next's.
        out_pitch: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }
}

/// The kernel `delta_net`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<DeltaNet>("delta_net", &[Read, Read, Write, Write], include_str!("delta_net.wgsl"), cases);

/// Advances a head's state past a token, and returns the outputs.
fn oracle(state: &mut [f64], [q, k, v]: [&[f64]; 3], [decay, rate]: [f64; 2]) -> Vec<f64> {
    state.iter_mut().for_each(|s| *s *= decay);
    let read = |state: &[f64], with: &[f64], i: usize| -> f64 {
        state.chunks_exact(v.len()).zip(with).map(|(row, element)| row[i] * element).sum()
    };
    let deltas: Vec<f64> = v.iter().enumerate().map(|(i, v)| rate * (v - read(state, k, i))).collect();
    for (row, k) in state.chunks_exact_mut(v.len()).zip(k) {
        row.iter_mut().zip(&deltas).for_each(|(s, delta)| *s += k * delta);
    }
    (0..v.len()).map(|i| read(state, q, i)).collect()
}

/// Workgroups with 8 or 3 columns of the state.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes = [[2, 4, 24, 20, 9], [2, 4, 16, 16, 1], [1, 2, 5, 7, 9], [1, 2, 128, 40, 24], [3, 3, 24, 80, 6]];
    let shapes = [&shapes[..], &[[1, 1, 256, 16, 3], [2, 4, 16, 16, 5]]].concat();
    let forms = [(8, true), (3, false)];
    let cases_of = |shape: [usize; 5]| {
        request.pick(&forms, 1).iter().map(move |(columns, interleaved)| case(shape, *columns, *interleaved))
    };
    request.pick(&shapes, 1).iter().copied().flat_map(cases_of).collect()
}

fn case([k_heads, v_heads, k_dim, v_dim, tokens]: [usize; 5], columns: u32, interleaved: bool) -> KernelCase {
    // Another sequence's row precedes the tokens.
    let (row, decay_at, rate_at, out_pitch) = (1, 1, 1 + v_heads, v_heads * v_dim + 2);
    let (qkv_pitch, rates_pitch) = (2 * k_heads * k_dim + v_heads * v_dim + 5, 2 * v_heads + 4);
    let qkv = loud_noise((row + tokens) * qkv_pitch, 1, 1.7 / (k_dim as f32).sqrt());
    let rates: Vec<f32> = noise((row + tokens) * rates_pitch, 2).iter().map(|rate| rate.abs()).collect();
    let (before, out) = (noise(v_heads * k_dim * v_dim, 3), vec![7.0_f32; (row + tokens) * out_pitch]);
    let (mut state, mut outputs, vectors) = (wide(&before), wide(&out), wide(&qkv));
    for (t, h) in (row..row + tokens).flat_map(|t| (0..v_heads).map(move |h| (t, h))) {
        let k_head = if interleaved { h % k_heads } else { h / (v_heads / k_heads) };
        let (query, value) = (k_head * k_dim, 2 * k_heads * k_dim + h * v_dim);
        let of_token = [(query, k_dim), (k_heads * k_dim + query, k_dim), (value, v_dim)];
        let of_token = of_token.map(|(at, len)| &vectors[t * qkv_pitch + at..][..len]);
        let rates = [decay_at, rate_at].map(|at| f64::from(rates[t * rates_pitch + at + h]));
        let sums = oracle(&mut state[h * k_dim * v_dim..][..k_dim * v_dim], of_token, rates);
        outputs[t * out_pitch + h * v_dim..][..v_dim].copy_from_slice(&sums);
    }
    let name = format!("{v_heads} heads of {k_dim} x {v_dim}, {tokens} tokens, {columns} columns");
    let [tokens, k_heads, v_heads, v_dim, qkv_pitch, rates_pitch, decay_at, rate_at, out_pitch, row, k_dim] =
        sizes([tokens, k_heads, v_heads, v_dim, qkv_pitch, rates_pitch, decay_at, rate_at, out_pitch, row, k_dim]);
    let params =
        DeltaNet { tokens, k_heads, v_heads, v_dim, qkv_pitch, rates_pitch, decay_at, rate_at, out_pitch, row };
    let groups = [v_dim.div_ceil(columns), v_heads, 1];
    KernelCase::new("delta_net", k_dim.div_ceil(SCAN_ROWS) * columns, params, groups)
        .named(name)
        .set("STATE_ROWS", k_dim)
        .set("COLUMNS", columns)
        .set("INTERLEAVED", interleaved)
        .input(&qkv)
        .input(&rates)
        .input(&before)
        .becomes(&state, 1e-5)
        .input(&out)
        .becomes(&outputs, 1e-5)
}
