//! How many tokens a pass may have so that each token gets the bits of a pass of its own.

use crate::{
    cpu::Cpu,
    format::Tensor,
    model::{Down, Ffn, LayerWeights, Model, SkipRule, Skips},
    runtime::Sparsity,
};

/// Most tokens of one sequence whose logits in one pass have the bits that each has in a pass of its own; 1 if no pass of
/// several tokens has them.
///
/// Every sum has to be added up in one order, whatever the number of tokens. Attention and norms do so. Products do so up
/// to [`Cpu::same_bits`]. Recurrent states do not, nor does a single token that skips neurons or inputs, nor do sums of
/// neuron-major rows and of experts that have biases.
pub(super) fn same_bits(cpu: &Cpu, model: &Model, mode: Sparsity) -> usize {
    let weights = &model.weights;
    let skips_inputs = weights.input_level.is_some() && mode != Sparsity::Dense;
    let skips_neurons =
        |layer: &LayerWeights| SkipRule::of(layer, model.config.activation).skips(mode, true, false) != Skips::Nothing;
    if model.config.is_recurrent()
        || skips_inputs
        || weights.layers.iter().any(|it| skips_neurons(it) || sums_in_another_order(it))
    {
        return 1;
    }
    let tensors = model.checkpoint.tensors().iter();
    tensors.filter_map(Tensor::matrix).map(|matrix| cpu.same_bits(&matrix)).min().unwrap_or(1)
}

/// True if the down projections of an FFN are added up in an order that depends on the number of tokens: those that have a row
/// for each neuron, and those of experts with biases.
fn sums_in_another_order(layer: &LayerWeights) -> bool {
    match &layer.ffn {
        Ffn::None => false,
        Ffn::Dense(ffn) => matches!(ffn.down, Down::Neurons(_)),
        Ffn::Experts(experts) => {
            experts.ffns().any(|ffn| matches!(ffn.down, Down::Neurons(_)) || ffn.down.linear().bias.is_some())
        }
    }
}
