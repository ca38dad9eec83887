//! Inputs of the gated delta rule, in place. Queries and keys of each head get length 1, and
//! queries are divided by `sqrt(k_dim)`: `q = q / sqrt(|q|^2 + 1e-6) / sqrt(k_dim)`,
//! `k = k / sqrt(|k|^2 + 1e-6)`. Decay and rate of each value head become
//! `decay = e^(a * softplus(decay + dt_bias))` and `rate = sigmoid(rate)`.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, loud_noise, noise, sigmoid, sizes, softplus, wide},
    params::params,
};

params! {
    /// `delta_inputs`, grid (`2 * k_heads + 1`; tokens)
    DeltaInputs {
        /// Heads of queries and keys.
        k_heads: u32,
        /// Heads of values.
        v_heads: u32,
        /// Elements of a query or key.
        k_dim: u32,
        /// Elements from one token's queries, keys and values to the next's.
        qkv_pitch: u32,
        /// Elements from one token's rates to the next's.
        rates_pitch: u32,
        /// Offset of the decays in a row of rates.
        decay_at: u32,
        /// Offset of the rates of the delta rule in a row of rates.
        rate_at: u32,
    }
}

/// The kernel `delta_inputs`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<DeltaInputs>("delta_inputs", &[Write, Write, Read, Read], include_str!("delta_inputs.wgsl"), cases);

/// Makes a query (with `root` `sqrt(k_dim)`) or a key (with `root` 1) in place.
fn vector_oracle(vector: &mut [f64], root: f64) {
    let length = (vector.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    vector.iter_mut().for_each(|x| *x /= length * root);
}

/// Decay and rate of a value head.
fn rates_oracle(decay: f64, rate: f64, a: f32, dt_bias: f32) -> [f64; 2] {
    [(f64::from(a) * softplus(decay + f64::from(dt_bias))).exp(), sigmoid(rate)]
}

/// Heads smaller and larger than a workgroup. Rates are far below and above zero.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes = [[2, 4, 24, 9], [2, 4, 16, 1], [1, 2, 5, 9], [1, 2, 128, 24], [3, 3, 24, 6], [1, 1, 256, 3]];
    let shapes = request.pick(&shapes, 1).iter();
    shapes.flat_map(|shape| request.pick(&[64, 96], 1).iter().map(|workgroup| case(*shape, *workgroup))).collect()
}

fn case([k_heads, v_heads, k_dim, tokens]: [usize; 4], workgroup: u32) -> KernelCase {
    // A row has room for values and padding.
    let (qkv_pitch, rates_pitch) = (2 * k_heads * k_dim + 10 * v_heads + 5, 2 * v_heads + 4);
    let (decay_at, rate_at) = (3, 3 + v_heads);
    let (qkv, rates) = (loud_noise(tokens * qkv_pitch, 1, 3.0), loud_noise(tokens * rates_pitch, 2, 30.0));
    let a: Vec<f32> = noise(v_heads, 3).iter().map(|a| -a.abs()).collect();
    let dt_bias = noise(v_heads, 4);
    let (mut vectors, mut ready) = (wide(&qkv), wide(&rates));
    for row in vectors.chunks_exact_mut(qkv_pitch) {
        for (slot, vector) in row.chunks_exact_mut(k_dim).take(2 * k_heads).enumerate() {
            vector_oracle(vector, if slot < k_heads { (k_dim as f64).sqrt() } else { 1.0 });
        }
    }
    for row in ready.chunks_exact_mut(rates_pitch) {
        for h in 0..v_heads {
            [row[decay_at + h], row[rate_at + h]] = rates_oracle(row[decay_at + h], row[rate_at + h], a[h], dt_bias[h]);
        }
    }
    let name = format!("{k_heads} heads of {k_dim}, {v_heads} value heads, {tokens} tokens");
    let [k_heads, v_heads, k_dim, tokens, qkv_pitch, rates_pitch, decay_at, rate_at] =
        sizes([k_heads, v_heads, k_dim, tokens, qkv_pitch, rates_pitch, decay_at, rate_at]);
    let params = DeltaInputs { k_heads, v_heads, k_dim, qkv_pitch, rates_pitch, decay_at, rate_at };
    KernelCase::new("delta_inputs", workgroup, params, [2 * k_heads + 1, tokens, 1])
        .named(name)
        .input(&qkv)
        .becomes(&vectors, 1e-5)
        .input(&rates)
        .becomes(&ready, 1e-5)
        .input(&a)
        .input(&dt_bias)
}
