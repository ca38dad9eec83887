//! Counts the separate tokens of a pass that get the bits of single-token passes, while a part of
//! the model is on a device.

use crate::runtime::Sparsity;
use thermocline_gpu::FEW_TOKENS;
use thermocline_model::{Model, SkipRule, Skips};

/// Returns the largest number of separate tokens that a pass may have so that each token's logits
/// have the bits of a single-token pass. The parts of `model` may be on the CPU or on the device.
/// `of_cpu` is the number for a model that is on the CPU alone.
///
/// On a device every sum has one order for up to [`FEW_TOKENS`] tokens. Products and neuron-major
/// rows have kernels for several tokens with the order of one token. Pairs of tokens and experts
/// are computed one by one, and attention divides the keys of each token as if it were alone. The
/// other kernels compute each token separately.
///
/// A driver's compiler may break this order
/// ([`Gpu::keeps_bits`](thermocline_gpu::Gpu::keeps_bits)). Skipping neurons is different, too: a
/// device skips them only for single tokens, in other kernels. Modes that skip neurons therefore
/// promise nothing.
pub(super) fn same_bits(of_cpu: usize, model: &Model, mode: Sparsity) -> usize {
    let rules = model.weights.layers.iter().map(|layer| SkipRule::of(layer, model.config.activation));
    let skips = rules.into_iter().any(|rule| rule.skips_of_token(mode) != Skips::Nothing);
    if skips { 1 } else { of_cpu.min(FEW_TOKENS) }
}
