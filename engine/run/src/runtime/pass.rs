//! A pass: what is computed of a chunk of tokens, and how.

use super::Probe;
use thermocline_model::{Model, Sparsity};

/// Corrections of the layers' predictor thresholds, made while their recall is checked against a target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThresholdCorrection {
    /// Added to each layer's threshold, `[layers]`; layers past the end keep theirs.
    pub shift: Vec<f32>,
    /// Layer whose predictor is computed but not followed: its FFN is computed as by [`Sparsity::Exact`], so that
    /// [`LayerFiring`](super::LayerFiring) has the neurons that would have been missed.
    pub recall_check: Option<usize>,
}

impl ThresholdCorrection {
    /// Nothing is corrected.
    pub const NONE: ThresholdCorrection = ThresholdCorrection { shift: Vec::new(), recall_check: None };
}

/// The facts of one pass of a chunk through the layers: made by the driver, and handed to a processor with every step, so that no
/// processor keeps a copy. Positions are those of the [`Sequences`](super::Sequences), whose caches change on the way.
pub struct Pass<'a> {
    /// The model.
    pub model: &'a Model,
    /// The chunk's tokens, those of several sequences one after the other.
    pub tokens: &'a [u32],
    /// True if each token is computed as one alone, where a processor can: tokens of several sequences, or a token and drafts.
    pub separate: bool,
    /// Sparsity mode of single tokens, and of separate ones.
    pub sparsity: Sparsity,
    /// Correction of the predictors' thresholds.
    pub correction: &'a ThresholdCorrection,
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
        Pass { model, tokens, separate: false, sparsity: Sparsity::Dense, correction: &NONE, times, probe }
    }

    /// True if a single token is computed.
    pub fn is_single(&self) -> bool {
        self.tokens.len() == 1
    }

    /// Elements of a register, `[tokens, d_model]`.
    pub(crate) fn register_len(&self) -> usize {
        self.tokens.len() * self.model.config.d_model
    }

    /// Added to the threshold of a layer's predictor.
    pub fn threshold_shift(&self, layer: usize) -> f32 {
        self.correction.shift.get(layer).copied().unwrap_or(0.0)
    }

    /// True if a layer's predictor is computed, but not followed.
    pub fn checks_recall(&self, layer: usize) -> bool {
        self.correction.recall_check == Some(layer)
    }
}
