//! Norms on the CPU.

use thermocline_cpu::Cpu;
use thermocline_model::{LayerNorms, ModelConfig, Norm, NormKind, NormSlot};

/// `x = norm(from)`, or `norm(x)` without `from`, row by row. A row is as long as the norm's
/// weight.
pub(super) fn norm_rows(cpu: &Cpu, config: &ModelConfig, norm: &Norm, x: &mut [f32], from: Option<&[f32]>) {
    normed_rows(cpu, config.norm, norm.eps(config.norm_eps), norm, x, from);
}

/// Computes [`norm_rows`] for a norm of this kind and epsilon.
pub(in crate::runtime) fn normed_rows(
    cpu: &Cpu,
    kind: NormKind,
    eps: f32,
    norm: &Norm,
    x: &mut [f32],
    from: Option<&[f32]>,
) {
    match kind {
        NormKind::Rms => cpu.rms_norm(x, from, &norm.weight, eps),
        NormKind::Layer => cpu.layer_norm(x, from, &norm.weight, norm.bias.as_deref(), eps),
    }
}

/// Norms heads, `[tokens, heads, head_dim]`, in groups of the length of the norm's weight: each
/// head by itself, or all heads of a token together. A layer norm with a weight for all heads, but
/// without a bias, norms each head by itself with its part of the weight.
pub(super) fn norm_heads(cpu: &Cpu, config: &ModelConfig, norm: &Norm, head_dim: usize, x: &mut [f32]) {
    if config.norm == NormKind::Rms || norm.weight.len() == head_dim || norm.bias.is_some() {
        return norm_rows(cpu, config, norm, x, None);
    }
    for heads in x.chunks_exact_mut(norm.weight.len()) {
        for (head, weight) in heads.chunks_exact_mut(head_dim).zip(norm.weight.chunks_exact(head_dim)) {
            cpu.layer_norm(head, None, weight, None, norm.eps(config.norm_eps));
        }
    }
}

/// Norms a vector within a part, `[tokens, n]`, if the layer has such a norm. A group is as long as
/// the norm's weight, which may be all elements of a token.
pub(super) fn norm_within(cpu: &Cpu, config: &ModelConfig, norms: LayerNorms<'_>, slot: NormSlot, x: &mut [f32]) {
    if let Some(norm) = norms.get(slot) {
        norm_rows(cpu, config, norm, x, None);
    }
}
