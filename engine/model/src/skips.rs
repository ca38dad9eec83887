//! The neurons of an FFN that a token's computation may leave out. The CPU, devices and plans all
//! use this one rule. A processor may leave out fewer neurons, never more.

use super::{Activation, Ffn, FfnWeights, LayerWeights, Sparsity};

/// Neurons of an FFN that may be left out of a token's computation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Skips {
    /// None.
    Nothing,
    /// Silent neurons: their firing row (the gate's, or the up matrix's without a gate) shows that
    /// they contribute zero.
    Silent,
    /// Neurons whose gate activation has at most this magnitude.
    Above(f32),
    /// Neurons that the predictor rules out, and silent neurons among the others.
    NotPredicted,
}

impl Skips {
    /// Returns the magnitude that a gate's activation has to exceed; `None` for rules that are
    /// exact or use a predictor.
    pub fn activation_threshold(self) -> Option<f32> {
        match self {
            Skips::Above(threshold) => Some(threshold),
            Skips::Nothing | Skips::Silent | Skips::NotPredicted => None,
        }
    }

    /// Returns the same threshold for kernels that compute gates first and have no prediction. For
    /// silent neurons it is zero.
    pub fn gate_threshold(self) -> Option<f32> {
        match self {
            Skips::Nothing => None,
            Skips::Silent | Skips::NotPredicted => Some(0.0),
            Skips::Above(threshold) => Some(threshold),
        }
    }
}

/// Facts about a layer's FFN that decide which neurons may be left out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SkipRule {
    /// True if the activation makes silent neurons exactly zero.
    pub sparse_activation: bool,
    /// True if gates below a threshold that depends on the token are set exactly to zero
    /// ([`LayerWeights::gate_deviations`]).
    pub silences_gates: bool,
    /// True if neurons have gates.
    pub gated: bool,
    /// True if the layer has a predictor, or a prediction exists.
    pub has_predictor: bool,
    /// Threshold on the magnitude of a gate's activation.
    pub threshold: Option<f32>,
    /// The model's threshold, above which a computed neuron counts as fired on every side.
    pub fires_above: Option<f32>,
    /// True if [`Sparsity::Threshold`] skips small inputs of the FFN's products instead of neurons.
    pub skips_inputs: bool,
}

impl SkipRule {
    /// Returns the rule of `layer`'s FFN in a model with this activation. Experts are computed
    /// several at a time and have no predictor.
    pub fn of(layer: &LayerWeights, activation: Activation) -> Self {
        let has_gate = |ffn: &FfnWeights| ffn.gate.is_some();
        let (dense, gated) = match &layer.ffn {
            Ffn::Dense(ffn) => (true, has_gate(ffn)),
            Ffn::Experts(experts) => (false, experts.ffns().all(has_gate)),
            Ffn::None => (false, false),
        };
        SkipRule {
            sparse_activation: activation.is_sparse(),
            silences_gates: dense && gated && layer.gate_deviations.is_some(),
            gated,
            has_predictor: dense && layer.predictor.is_some(),
            threshold: layer.activation_threshold,
            fires_above: layer.activation_threshold,
            skips_inputs: dense && layer.skipped_inputs.is_some(),
        }
    }

    /// Returns the neurons that a sparsity mode leaves out. `alone` is true for a single token, and
    /// for tokens that are each computed like a single one. Several tokens together need nearly all
    /// neurons. `shows` is true if an observer reads the hidden values. All neurons are then
    /// computed, provided that this does not change the output.
    pub fn skips(&self, mode: Sparsity, alone: bool, shows: bool) -> Skips {
        let is_silent = self.silences_gates || self.sparse_activation;
        match mode {
            _ if !alone => Skips::Nothing,
            Sparsity::Dense => Skips::Nothing,
            // The threshold that silences gates is known only after all gates are computed.
            Sparsity::Predicted if self.sparse_activation && self.has_predictor && !self.silences_gates => {
                Skips::NotPredicted
            }
            Sparsity::Exact | Sparsity::Predicted if is_silent && !shows => Skips::Silent,
            Sparsity::Exact | Sparsity::Predicted => Skips::Nothing,
            Sparsity::Threshold if self.skips_inputs || !self.gated => Skips::Nothing,
            Sparsity::Threshold => self.threshold.map_or(Skips::Nothing, Skips::Above),
        }
    }

    /// Returns the neurons that a sparsity mode leaves out of a single token without an observer.
    pub fn skips_of_token(&self, mode: Sparsity) -> Skips {
        self.skips(mode, true, false)
    }

    /// Returns the magnitude that a gate's activation has to exceed for its neuron to count as
    /// fired when all neurons are computed. `None` for ungated neurons, and for activations that
    /// make silent neurons exactly zero.
    pub fn fires_above(&self) -> Option<f32> {
        self.fires_above.filter(|_| self.gated && !self.sparse_activation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ReLU family, with gates.
    const RELU: SkipRule = SkipRule {
        sparse_activation: true,
        silences_gates: false,
        gated: true,
        has_predictor: false,
        threshold: None,
        fires_above: None,
        skips_inputs: false,
    };
    /// SwiGLU family.
    const SWIGLU: SkipRule = SkipRule { sparse_activation: false, ..RELU };

    /// Checks, by rule, which neurons are left out of a single token, in the order of
    /// [`Sparsity::ALL`].
    #[test]
    fn every_mode_skips_what_the_facts_allow() {
        use Skips::{Above, NotPredicted, Nothing, Silent};
        let (predictor, threshold) = (true, Some(0.5));
        let table = [
            ("relu", RELU, [Nothing, Silent, Silent, Nothing]),
            ("relu without gates", SkipRule { gated: false, ..RELU }, [Nothing, Silent, Silent, Nothing]),
            (
                "relu with a predictor",
                SkipRule { has_predictor: predictor, ..RELU },
                [Nothing, Silent, NotPredicted, Nothing],
            ),
            ("relu with a threshold", SkipRule { threshold, ..RELU }, [Nothing, Silent, Silent, Above(0.5)]),
            ("swiglu", SWIGLU, [Nothing; 4]),
            ("swiglu with a predictor", SkipRule { has_predictor: predictor, ..SWIGLU }, [Nothing; 4]),
            ("swiglu with a threshold", SkipRule { threshold, ..SWIGLU }, [Nothing, Nothing, Nothing, Above(0.5)]),
            ("a threshold without gates", SkipRule { threshold, gated: false, ..SWIGLU }, [Nothing; 4]),
            (
                "relu, a threshold without gates",
                SkipRule { threshold, gated: false, ..RELU },
                [Nothing, Silent, Silent, Nothing],
            ),
            ("skipped inputs", SkipRule { threshold, skips_inputs: true, ..SWIGLU }, [Nothing; 4]),
            (
                "relu with skipped inputs",
                SkipRule { threshold, skips_inputs: true, has_predictor: predictor, ..RELU },
                [Nothing, Silent, NotPredicted, Nothing],
            ),
            (
                "silenced gates",
                SkipRule { silences_gates: true, threshold, ..SWIGLU },
                [Nothing, Silent, Silent, Above(0.5)],
            ),
            (
                "silenced gates with a predictor",
                SkipRule { silences_gates: true, has_predictor: predictor, ..RELU },
                [Nothing, Silent, Silent, Nothing],
            ),
        ];
        for (name, rule, wanted) in table {
            for (mode, wanted) in Sparsity::ALL.into_iter().zip(wanted) {
                assert_eq!(rule.skips(mode, true, false), wanted, "{name}, {mode}");
                // An observer also reads the neurons that contribute zero, which does not change
                // the output.
                let shown = if wanted == Silent { Nothing } else { wanted };
                assert_eq!(rule.skips(mode, true, true), shown, "{name}, {mode}, observed");
                for shows in [false, true] {
                    assert_eq!(rule.skips(mode, false, shows), Nothing, "{name}, {mode}, several tokens");
                }
            }
        }
    }

    #[test]
    fn thresholds_of_kernels_follow_from_what_is_skipped() {
        for (skips, approximate, gate) in [
            (Skips::Nothing, None, None),
            (Skips::Silent, None, Some(0.0)),
            (Skips::NotPredicted, None, Some(0.0)),
            (Skips::Above(0.5), Some(0.5), Some(0.5)),
        ] {
            assert_eq!((skips.activation_threshold(), skips.gate_threshold()), (approximate, gate), "{skips:?}");
        }
        let (fires_above, threshold) = (Some(0.5), Some(0.25));
        assert_eq!(SkipRule { fires_above, threshold, ..SWIGLU }.fires_above(), fires_above);
        assert_eq!(SkipRule { fires_above, gated: false, ..SWIGLU }.fires_above(), None);
        assert_eq!(SkipRule { fires_above, ..RELU }.fires_above(), None);
    }
}
