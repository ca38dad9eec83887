//! The neurons of an FFN that may be left out of a token's computation: one rule, which the CPU, a device and plans ask. A processor
//! leaves out what its kernels can, never more.

use super::{Activation, Ffn, FfnWeights, LayerWeights, Sparsity};

/// Neurons of an FFN that may be left out of a token's computation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Skips {
    /// None.
    Nothing,
    /// Those that are silent: their firing row (gate, or up without a gate) says that they contribute zero.
    Silent,
    /// Those whose gate's activation is not above this in magnitude.
    Above(f32),
    /// Those that the predictor rules out, and of the others those that are silent.
    NotPredicted,
}

impl Skips {
    /// The magnitude that a gate's activation has to exceed, where that is an approximation.
    pub fn activation_threshold(self) -> Option<f32> {
        match self {
            Skips::Above(threshold) => Some(threshold),
            Skips::Nothing | Skips::Silent | Skips::NotPredicted => None,
        }
    }

    /// The same for kernels that compute gates first and know no prediction: silent neurons are those not above zero.
    pub fn gate_threshold(self) -> Option<f32> {
        match self {
            Skips::Nothing => None,
            Skips::Silent | Skips::NotPredicted => Some(0.0),
            Skips::Above(threshold) => Some(threshold),
        }
    }
}

/// The facts of a layer's FFN that decide which neurons may be left out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SkipRule {
    /// True if the activation makes silent neurons exactly zero.
    pub sparse_activation: bool,
    /// True if gates are silenced, exactly, below a threshold of the token's own ([`LayerWeights::gate_deviations`]).
    pub silences_gates: bool,
    /// True if neurons have gates.
    pub gated: bool,
    /// True if there is a predictor, or a prediction.
    pub has_predictor: bool,
    /// Activation threshold.
    pub threshold: Option<f32>,
    /// True if [`Sparsity::Threshold`] skips small inputs of the FFN's products instead of neurons.
    pub skips_inputs: bool,
}

impl SkipRule {
    /// The rule of `layer`'s FFN, in a model with this activation. Experts are computed several at a time and have no predictor.
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
            skips_inputs: dense && layer.skipped_inputs.is_some(),
        }
    }

    /// The neurons that a sparsity mode leaves out. `alone`: a single token, or tokens each of which is computed as one alone; together
    /// several need nearly all neurons. `shows`: an observer sees hidden values, of all neurons where that does not change the output.
    pub fn skips(&self, mode: Sparsity, alone: bool, shows: bool) -> Skips {
        let is_silent = self.silences_gates || self.sparse_activation;
        match mode {
            _ if !alone => Skips::Nothing,
            Sparsity::Dense => Skips::Nothing,
            // What silences gates is known once all of them are.
            Sparsity::Predicted if self.sparse_activation && self.has_predictor && !self.silences_gates => {
                Skips::NotPredicted
            }
            Sparsity::Exact | Sparsity::Predicted if is_silent && !shows => Skips::Silent,
            Sparsity::Exact | Sparsity::Predicted => Skips::Nothing,
            Sparsity::Threshold if self.skips_inputs || !self.gated => Skips::Nothing,
            Sparsity::Threshold => self.threshold.map_or(Skips::Nothing, Skips::Above),
        }
    }

    /// The magnitude that a gate's activation has to exceed for its neuron to count as fired though all neurons were computed, where
    /// the activation makes none exactly zero.
    pub fn fires_above(&self) -> Option<f32> {
        self.threshold.filter(|_| self.gated && !self.sparse_activation)
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
        skips_inputs: false,
    };
    /// SwiGLU family.
    const SWIGLU: SkipRule = SkipRule { sparse_activation: false, ..RELU };

    /// By rule: the neurons left out of a token alone, in the order of [`Sparsity::ALL`].
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
                // An observer sees the neurons that contribute zero too, but does not change the output.
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
        let threshold = Some(0.5);
        assert_eq!(SkipRule { threshold, ..SWIGLU }.fires_above(), threshold);
        assert_eq!(SkipRule { threshold, gated: false, ..SWIGLU }.fires_above(), None);
        assert_eq!(SkipRule { threshold, ..RELU }.fires_above(), None);
    }
}
