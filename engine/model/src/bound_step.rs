//! The steps of a layer's program, each with the weights and the configuration that it names.
//! Loading a model looks them all up once. A processor therefore never finds a part missing.

use super::{
    AltupStep, AltupWeights, BoundAttention, BoundFfn, BoundRecurrent, ExpertWeights, FfnKind, FfnWeights, Model,
    ModelConfig, Norm, PerLayerWeights, Register, Step, Weights,
};
use thermocline_base::error::{Error, Result};

/// A step of a layer's program with references to everything that it names. It borrows from the
/// model. Every pass binds it again, because weights may be replaced between passes.
#[derive(Debug, Clone, Copy)]
pub struct BoundStep<'m> {
    /// Number of the layer.
    pub layer: usize,
    /// Index of the step in the layer's program. A device finds the prepared form of the step by
    /// this index.
    pub index: usize,
    /// The operation.
    pub operation: BoundOperation<'m>,
}

/// The operation of a [`Step`]. Only a norm, a sum and a factor may read `Out`.
#[derive(Debug, Clone, Copy)]
pub enum BoundOperation<'m> {
    /// `into = norm(from)`; `from` and `into` may be the same.
    Norm {
        /// Weights.
        norm: &'m Norm,
        /// Input.
        from: Register,
        /// Output.
        into: Register,
        /// True if the layer's FFN reads the output of this norm. A predictor then runs right after
        /// the norm.
        feeds_ffn: bool,
        /// True if `from` changes before the FFN runs, and the FFN's predictor may read the present
        /// `from`.
        keeps_input: bool,
    },
    /// `Out = attention(from)`. Appends the keys and values of the chunk to the layer's KV cache of
    /// each sequence.
    Attention(BoundAttention<'m>),
    /// `Out = recurrent mixer(from)`. The rows of each sequence advance its recurrent state in the
    /// layer.
    Recurrent(BoundRecurrent<'m>),
    /// The router reads `from` and chooses the experts of the layer's FFN.
    Route {
        /// FFN whose experts are chosen.
        ffn: BoundFfn<'m>,
        /// Experts of that FFN.
        experts: &'m ExpertWeights,
        /// Input.
        from: Register,
    },
    /// `Out = ffn(from)`
    Ffn(BoundFfn<'m>),
    /// `Out = dense FFN(from)`, for the dense FFN beside the layer's experts.
    DenseFfn {
        /// Weights.
        weights: &'m FfnWeights,
        /// Input.
        from: Register,
    },
    /// `into += from`; the two registers differ.
    Add {
        /// The summand.
        from: Register,
        /// The sum.
        into: Register,
    },
    /// `Residual += Out`, times [`ModelConfig::residual_scale`].
    AddOut,
    /// `Out =` these weights applied to the layer's own input and `Residual`.
    PerLayerInput(&'m PerLayerWeights),
    /// A step between the streams of a model with several streams (AltUp).
    Altup {
        /// The step.
        step: AltupStep,
        /// AltUp weights of the layer, for all of its AltUp steps.
        weights: &'m AltupWeights,
    },
    /// `Residual *=` this factor.
    Scale(f32),
}

impl Model {
    /// Binds the steps of `layer`, in program order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a step that names a part that the model lacks. A loaded model has no
    /// such step.
    pub fn steps(&self, layer: usize) -> impl Iterator<Item = Result<BoundStep<'_>>> {
        let steps = 0..self.config.layers[layer].steps.len();
        steps.map(move |index| BoundStep::new(&self.config, &self.weights, layer, index))
    }

    /// Returns the FFN of `layer`, if it has one.
    pub fn ffn(&self, layer: usize) -> Option<BoundFfn<'_>> {
        bound_ffn(&self.config, &self.weights, layer)
    }
}

impl<'m> BoundStep<'m> {
    /// Binds step `index` of `layer`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the step names a part that the model lacks, or reads a register that
    /// it writes.
    pub(super) fn new(config: &'m ModelConfig, weights: &'m Weights, layer: usize, index: usize) -> Result<Self> {
        let (shape, of) = (&config.layers[layer], &weights.layers[layer]);
        let step = shape.steps[index];
        let refused =
            |expected: &str| Error::invalid("layer program", expected.to_owned(), format!("{step:?} in layer {layer}"));
        let absent = |wanted: &str| refused(&format!("{wanted} among the loaded weights"));
        let input = |from| if from == Register::Out { Err(refused("an input that is not `Out`")) } else { Ok(from) };
        let operation = match step {
            Step::Norm { norm, from, into } => {
                let norm =
                    of.norm(norm).filter(|_| !norm.is_within_part()).ok_or_else(|| absent("a norm of a register"))?;
                let feeds_ffn = shape.ffn_norm() == Some(index);
                let keeps_input = feeds_ffn && shape.early_ffn_input().is_some();
                BoundOperation::Norm { norm, from, into, feeds_ffn, keeps_input }
            }
            Step::Attention { from } => {
                let (config, weights) = (shape.attention.as_ref(), of.attention.as_ref());
                let bound = BoundAttention::new(layer, input(from)?, config, weights, of.layer_norms());
                BoundOperation::Attention(bound.ok_or_else(|| absent("attention"))?)
            }
            Step::Recurrent { from } => {
                let (config, weights) = (shape.recurrent.as_ref(), of.recurrent.as_ref());
                let bound = BoundRecurrent::new(layer, input(from)?, config, weights, of.layer_norms());
                BoundOperation::Recurrent(bound.ok_or_else(|| absent("a recurrent mixer"))?)
            }
            Step::Route { from } => {
                let bound = bound_ffn(config, weights, layer);
                let (ffn, experts) = bound
                    .and_then(|ffn| Some((ffn, routed_early(&shape.steps, ffn.kind)?)))
                    .ok_or_else(|| absent("a router of experts without a gated shared expert"))?;
                BoundOperation::Route { ffn, experts, from: input(from)? }
            }
            Step::Ffn { from } => {
                input(from)?;
                BoundOperation::Ffn(bound_ffn(config, weights, layer).ok_or_else(|| absent("an FFN"))?)
            }
            Step::DenseFfn { from } => {
                let weights = of.beside_experts.as_ref().ok_or_else(|| absent("a dense FFN beside experts"))?;
                BoundOperation::DenseFfn { weights, from: input(from)? }
            }
            Step::Add { from, into } if from == into => return Err(refused("a sum of two different registers")),
            Step::Add { from, into } => BoundOperation::Add { from, into },
            Step::AddOut => BoundOperation::AddOut,
            Step::PerLayerInput => {
                let of = of.per_layer.as_ref().filter(|_| weights.per_layer.is_some());
                BoundOperation::PerLayerInput(of.ok_or_else(|| absent("per-layer inputs"))?)
            }
            Step::Altup(step) => {
                let of = of.altup.as_deref().filter(|_| weights.altup.is_some());
                BoundOperation::Altup { step, weights: of.ok_or_else(|| absent("weights of several streams"))? }
            }
            Step::Scale => BoundOperation::Scale(of.output_scale.ok_or_else(|| absent("a factor"))?),
        };
        Ok(BoundStep { layer, index, operation })
    }
}

/// Binds the FFN of `layer`; `None` for a layer without an FFN.
fn bound_ffn<'m>(config: &'m ModelConfig, weights: &'m Weights, layer: usize) -> Option<BoundFfn<'m>> {
    let (shape, weights) = (&config.layers[layer], &weights.layers[layer]);
    Some(BoundFfn {
        layer,
        from: shape.ffn_input()?,
        kind: weights.ffn.kind()?,
        norms: weights.layer_norms(),
        gate_deviations: weights.gate_deviations,
        predictor: weights.predictor.as_ref(),
        activation_threshold: weights.activation_threshold,
        routed: shape.early_router_input().is_some(),
        keeps_residual: shape.early_ffn_input().is_none(),
    })
}

/// Returns the experts of `ffn` if a step before the FFN can choose them. This needs exactly one
/// router step, which comes before the FFN. A shared expert must not have a gate, because the gate
/// would read the same input.
fn routed_early<'m>(steps: &[Step], ffn: FfnKind<'m>) -> Option<&'m ExpertWeights> {
    let FfnKind::Experts(experts) = ffn else { return None };
    let routers = steps.iter().filter(|step| matches!(step, Step::Route { .. })).count();
    let find = |wanted: fn(&Step) -> bool| steps.iter().position(wanted);
    let ahead = find(|step| matches!(step, Step::Route { .. })) < find(|step| matches!(step, Step::Ffn { .. }));
    let gated = experts.shared.as_ref().is_some_and(|shared| shared.gate.is_some());
    (routers == 1 && ahead && !gated).then_some(experts)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{LoadOptions, NormSlot};

    fn model() -> Model {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/qwen3");
        Model::open(&path, &LoadOptions::default()).expect("the fixture opens")
    }

    #[test]
    fn steps_that_name_what_a_layer_does_not_have_are_refused() {
        let mut model = model();
        let (norm, from, into) = (NormSlot::PostFfn, Register::Normed, Register::Normed);
        let out = Register::Out;
        for step in [
            Step::Norm { norm, from, into },
            Step::Recurrent { from },
            Step::Route { from },
            Step::DenseFfn { from },
            Step::PerLayerInput,
            Step::Altup(AltupStep::Predict),
            Step::Scale,
            Step::Attention { from: out },
            Step::Ffn { from: out },
            Step::Add { from, into },
        ] {
            model.config.layers[0].steps = vec![step].into();
            assert!(model.steps(0).all(|step| step.is_err()), "{step:?}");
        }
    }

    #[test]
    fn norms_know_what_the_ffn_behind_them_needs() {
        let mut model = model();
        for (steps, later) in [(Step::sequential(), false), (Step::parallel(), true)] {
            model.config.layers[0].steps = steps.into();
            let steps = model.steps(0).collect::<Result<Vec<_>>>().expect("every step is bound");
            let mut norms = steps.iter().filter_map(|step| match step.operation {
                BoundOperation::Norm { feeds_ffn, keeps_input, .. } => Some((feeds_ffn, keeps_input)),
                _ => None,
            });
            assert_eq!(norms.next_back(), Some((true, later)));
            assert_eq!(model.ffn(0).map(|ffn| ffn.keeps_residual), Some(!later));
        }
    }
}
