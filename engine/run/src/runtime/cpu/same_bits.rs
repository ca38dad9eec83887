//! The number of separate tokens that a pass may have so that each gets the bits of a single-token
//! pass.

use crate::runtime::{MOST_PLANES, Sparsity};
use thermocline_cpu::{Cpu, FEW_TOKENS};
use thermocline_formats::format::Tensor;
use thermocline_model::{LayerWeights, Model, PredictorKind, SkipRule, Skips};

/// Most separate tokens in one pass whose logits have the bits of single-token passes. It is 1 if
/// no pass of several tokens has equal bits.
///
/// Every sum must be added in one order, whatever the number of tokens. Attention, norms, sums of
/// neuron-major rows, sums of experts, and products that skip inputs do so up to [`FEW_TOKENS`].
/// Other products do so up to [`Cpu::same_bits`]. Recurrent states do so as long as planes save
/// them after each token.
pub(super) fn same_bits(cpu: &Cpu, model: &Model, mode: Sparsity) -> usize {
    let predicts = |layer: &&LayerWeights| {
        SkipRule::of(layer, model.config.activation).skips_of_token(mode) == Skips::NotPredicted
    };
    let predictors = model.weights.layers.iter().filter(predicts).filter_map(|layer| layer.predictor.as_ref());
    let of_predictors = predictors.flat_map(|predictor| match &predictor.kind {
        PredictorKind::LowRank { fc1, fc2 } => [Some(fc1), Some(fc2)],
        PredictorKind::Rows { rows, .. } => [Some(rows), None],
    });
    let of_predictors = of_predictors.flatten().map(|matrix| cpu.same_bits(matrix));
    let tensors = model.own_tensors().filter_map(Tensor::matrix);
    let most = tensors.map(|matrix| cpu.same_bits(&matrix)).chain(of_predictors).min().unwrap_or(1);
    let saved = if model.config.is_recurrent() { 1 + MOST_PLANES } else { FEW_TOKENS };
    most.min(saved)
}
