//! RMS norm of the heads of a recurrent mixer's outputs `x` `[tokens, heads * dim]`, in place, with
//! a gate per element: `x = x / sqrt(mean(x^2) + eps) * weight * silu(gate)`. Optionally the gates
//! multiply `x` before the norm, and each head has a weight of its own.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, noise, sigmoid, sizes, wide},
    params::params,
};

params! {
    /// `gated_norm`, grid (heads; tokens)
    GatedNorm {
        /// Elements of a head.
        dim: u32,
        /// Elements from one token's outputs to the next's.
        pitch: u32,
        /// Elements from one token's gates to the next's.
        gate_pitch: u32,
        /// Offset of the gates in a row.
        gate_at: u32,
        /// Added under the square root.
        eps: f32,
    }
}

/// The kernel `gated_norm`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<GatedNorm>("gated_norm", &[Write, Read, Read], include_str!("gated_norm.wgsl"), cases);

/// A normed head.
fn oracle(head: &[f64], gates: &[f32], weight: &[f32], eps: f32, gate_first: bool) -> Vec<f64> {
    let silu = |gate: &f32| f64::from(*gate) * sigmoid((*gate).into());
    let gated = |head: &[f64]| -> Vec<f64> { head.iter().zip(gates).map(|(x, gate)| x * silu(gate)).collect() };
    let x = if gate_first { gated(head) } else { head.to_vec() };
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    let normed: Vec<f64> = x.iter().zip(weight).map(|(x, weight)| x * scale * f64::from(*weight)).collect();
    if gate_first { normed } else { gated(&normed) }
}

/// Heads smaller and larger than a workgroup, in both orders.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let forms = [(80, false), (80, true), (7, false), (128, false), (300, true)];
    request.pick(&forms, 2).iter().map(|(dim, gate_first)| case(*dim, *gate_first)).collect()
}

/// A case in which heads have weights of their own if gates are first.
fn case(dim: usize, gate_first: bool) -> KernelCase {
    let (heads, tokens, eps, gate_at) = (3, 2, 1e-5, 7);
    let (pitch, gate_pitch) = (heads * dim + 4, heads * dim + 9);
    let (x, gates) = (noise(tokens * pitch, 1), noise(tokens * gate_pitch, 2));
    let weight = noise(if gate_first { heads * dim } else { dim }, 3);
    let mut normed = wide(&x);
    for (t, h) in (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
        let head = &mut normed[t * pitch + h * dim..][..dim];
        let gates = &gates[t * gate_pitch + gate_at + h * dim..];
        head.copy_from_slice(&oracle(head, gates, &weight[h * dim % weight.len()..], eps, gate_first));
    }
    let [dim, pitch, gate_pitch, gate_at, heads, tokens] = sizes([dim, pitch, gate_pitch, gate_at, heads, tokens]);
    KernelCase::new("gated_norm", 64, GatedNorm { dim, pitch, gate_pitch, gate_at, eps }, [heads, tokens, 1])
        .named(format!("heads of {dim}, gates first: {gate_first}"))
        .set("GATE_FIRST", gate_first)
        .set("WEIGHT_PER_HEAD", gate_first)
        .input(&x)
        .becomes(&normed, 1e-5)
        .input(&gates)
        .input(&weight)
}
