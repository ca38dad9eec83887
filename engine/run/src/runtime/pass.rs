//! A pass: the computation of one chunk of tokens, and its settings.

use std::{borrow::Cow, ops::Range};

use super::{Probe, RoutePreference};
use thermocline_model::{Model, SkipRule, Skips, Sparsity};

/// Corrections of the layers' predictor thresholds, used while the predictors' recall is checked
/// against a target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThresholdCorrection {
    /// Shift added to each layer's threshold, `[layers]`. Layers past the end have no shift.
    pub shift: Vec<f32>,
    /// Layer whose predictor is computed but ignored. Its FFN is computed as by
    /// [`Sparsity::Exact`], so that [`LayerFiring`](super::LayerFiring) contains the neurons that
    /// the predictor would have missed.
    pub recall_check: Option<usize>,
}

impl ThresholdCorrection {
    /// No correction.
    pub const NONE: ThresholdCorrection = ThresholdCorrection { shift: Vec::new(), recall_check: None };
}

/// Inputs of the first layer for consecutive rows of a pass, in place of their tokens' embeddings.
#[derive(Debug, Clone)]
pub struct InputRows<'a> {
    /// The rows.
    pub rows: Range<usize>,
    /// `[rows, d_model]`
    pub values: &'a [f32],
    /// Values added to the residual stream after each of the first layers, `[rows, d_model]`.
    pub added: Vec<&'a [f32]>,
}

/// The settings of one pass of a chunk through the layers. The driver makes them and hands them to
/// a processor with every step, so no processor keeps a copy. Positions are in the
/// [`Sequences`](super::Sequences), whose caches change during the pass.
pub struct Pass<'a> {
    /// The model.
    pub model: &'a Model,
    /// The chunk's tokens, sequence by sequence.
    pub tokens: &'a [u32],
    /// Hidden states that a draft head reads beside the tokens, `[tokens, d_model]`.
    pub states: Option<&'a [f32]>,
    /// Inputs of the first layer in place of embeddings, for some of the rows.
    pub inputs: &'a [InputRows<'a>],
    /// Index of the first token of the second text, if the tokens are a pair of texts.
    pub second_at: Option<usize>,
    /// True if each token is computed as if it were alone, as far as a processor can. Used for
    /// tokens of several sequences, or for a token and its drafts.
    pub separate: bool,
    /// Sparsity mode of single tokens and of separate tokens.
    pub sparsity: Sparsity,
    /// Correction of the predictors' thresholds.
    pub correction: &'a ThresholdCorrection,
    /// Preference of routers for resident experts.
    pub routes: RoutePreference,
    /// True if layers are timed on a device ([`Probe::wants_times`]).
    pub times: bool,
    /// The observer.
    pub probe: &'a mut dyn Probe,
}

impl<'a> Pass<'a> {
    /// A dense pass of one sequence's tokens.
    pub fn new(model: &'a Model, tokens: &'a [u32], probe: &'a mut dyn Probe) -> Self {
        let times = probe.wants_firing() && probe.wants_times();
        static NONE: ThresholdCorrection = ThresholdCorrection::NONE;
        Pass {
            model,
            tokens,
            states: None,
            inputs: &[],
            second_at: None,
            separate: false,
            sparsity: Sparsity::Dense,
            correction: &NONE,
            routes: RoutePreference::OFF,
            times,
            probe,
        }
    }

    /// True if a single token is computed.
    pub fn is_single(&self) -> bool {
        self.tokens.len() == 1
    }

    /// True if the CPU computes its part of `layer`, which is also on a device, as for single
    /// tokens. Where single tokens skip neurons, the device computes all neurons of several tokens,
    /// and the CPU does the same.
    pub(crate) fn is_separate_on_both_sides(&self, layer: usize) -> bool {
        let rule = SkipRule::of(&self.model.weights.layers[layer], self.model.config.activation);
        self.separate && rule.skips_of_token(self.sparsity) == Skips::Nothing
    }

    /// The input of the first layer for `row` in place of an embedding, `[d_model]`, if it has one.
    pub(crate) fn input(&self, row: usize) -> Option<&'a [f32]> {
        let of = self.inputs.iter().find(|of| of.rows.contains(&row))?;
        let d_model = self.model.config.d_model;
        Some(&of.values[(row - of.rows.start) * d_model..][..d_model])
    }

    /// The tokens for lookups of per-layer inputs: the tokens of the pass, with token 0 in place of
    /// tokens without embeddings.
    pub(crate) fn embedded_tokens(&self) -> Cow<'a, [u32]> {
        let mut tokens = Cow::Borrowed(self.tokens);
        for of in self.inputs {
            tokens.to_mut()[of.rows.clone()].fill(0);
        }
        tokens
    }

    /// The values that are added to the residual stream after `layer`, with their rows.
    pub(crate) fn added_after(&self, layer: usize) -> impl Iterator<Item = (Range<usize>, &'a [f32])> {
        self.inputs.iter().filter_map(move |of| Some((of.rows.clone(), *of.added.get(layer)?)))
    }

    /// Elements of a register, `[tokens, d_model]`.
    pub(crate) fn register_len(&self) -> usize {
        self.tokens.len() * self.model.config.d_model
    }

    /// The shift added to the threshold of a layer's predictor.
    pub fn threshold_shift(&self, layer: usize) -> f32 {
        self.correction.shift.get(layer).copied().unwrap_or(0.0)
    }

    /// True if a layer's predictor is computed but ignored.
    pub fn checks_recall(&self, layer: usize) -> bool {
        self.correction.recall_check == Some(layer)
    }
}
