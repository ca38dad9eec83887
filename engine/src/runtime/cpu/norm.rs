//! Norms on the CPU.

use crate::{
    cpu::Cpu,
    model::{LayerNorms, ModelConfig, Norm, NormKind, NormSlot},
};

/// `x = norm(from)`, or `norm(x)` without `from`, row by row; rows are as long as the norm's weight.
pub(super) fn norm_rows(cpu: &Cpu, config: &ModelConfig, norm: &Norm, x: &mut [f32], from: Option<&[f32]>) {
    match config.norm {
        NormKind::Rms => cpu.rms_norm(x, from, &norm.weight, config.norm_eps),
        NormKind::Layer => cpu.layer_norm(x, from, &norm.weight, norm.bias.as_deref(), config.norm_eps),
    }
}

/// Norms a vector within a part, `[tokens, n]`, if its layer has a norm of it: all of a token's together, or as many at a time as the
/// norm's weight is long.
pub(super) fn norm_within(cpu: &Cpu, config: &ModelConfig, norms: LayerNorms<'_>, slot: NormSlot, x: &mut [f32]) {
    if let Some(norm) = norms.get(slot) {
        norm_rows(cpu, config, norm, x, None);
    }
}
