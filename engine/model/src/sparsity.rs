//! Sparsity modes: the neurons of an FFN that are computed.

use std::{fmt, str::FromStr};

use thermocline_base::error::{Error, Result};

/// Sparsity mode: the neurons that may be skipped when a single token is computed, as [`SkipRule`](super::SkipRule) says of a layer.
/// Chunks of several tokens are dense in every mode: together they need nearly all neurons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Sparsity {
    /// Nothing.
    #[default]
    Dense,
    /// ReLU family: the gate of every neuron is computed, the rest only where it fires. Equal to [`Sparsity::Dense`] but for
    /// the order of sums. So are layers whose gates are silenced below a threshold of the token's own; on other activations the same
    /// as dense.
    Exact,
    /// ReLU family: neurons the layer's predictor rules out are not looked at; then as [`Sparsity::Exact`]. Layers without a
    /// predictor are computed as there.
    Predicted,
    /// Any gated activation: up and down only where the magnitude of the gate's activation exceeds the layer's activation threshold.
    /// Layers without one are dense.
    Threshold,
}

impl Sparsity {
    /// Every mode.
    pub const ALL: [Sparsity; 4] = [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted, Sparsity::Threshold];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Sparsity::Dense => "dense",
            Sparsity::Exact => "exact",
            Sparsity::Predicted => "predicted",
            Sparsity::Threshold => "threshold",
        }
    }
}

impl fmt::Display for Sparsity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Sparsity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Sparsity::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| Error::invalid("sparsity mode", Sparsity::ALL.map(Sparsity::name).join(", "), text))
    }
}
