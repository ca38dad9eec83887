//! How many separate tokens a pass may have so that each gets the bits of a pass of its own.

use crate::{
    cpu::Cpu,
    format::Tensor,
    model::{LayerWeights, Model, SkipRule, Skips},
    runtime::Sparsity,
};

/// Most separate tokens whose logits in one pass have the bits that each has in a pass of its own; 1 if no pass of several tokens
/// has them.
///
/// Every sum has to be added up in one order, whatever the number of tokens. Attention, norms, sums of neuron-major rows and sums
/// of experts do so. Products do so up to [`Cpu::same_bits`]. Recurrent states do not, nor do predictors, nor does a single token
/// that skips inputs.
pub(super) fn same_bits(cpu: &Cpu, model: &Model, mode: Sparsity) -> usize {
    let weights = &model.weights;
    let skips_inputs = weights.input_level.is_some() && mode != Sparsity::Dense;
    let predicts = |layer: &LayerWeights| {
        SkipRule::of(layer, model.config.activation).skips(mode, true, false) == Skips::NotPredicted
    };
    if model.config.is_recurrent() || skips_inputs || weights.layers.iter().any(predicts) {
        return 1;
    }
    let tensors = model.checkpoint.tensors().iter();
    tensors.filter_map(Tensor::matrix).map(|matrix| cpu.same_bits(&matrix)).min().unwrap_or(1)
}
