//! Sparsity modes, which decide which neurons of an FFN are computed.

use std::{fmt, str::FromStr};

use thermocline_base::error::{Error, Result};

/// Sparsity mode: the neurons that may be skipped for a single token. [`SkipRule`](super::SkipRule)
/// applies it to a layer. Chunks of several tokens are dense in every mode, because together they
/// need nearly all neurons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Sparsity {
    /// Skips nothing.
    #[default]
    Dense,
    /// ReLU family: computes the gate of every neuron, and the rest only for neurons that fire.
    /// Equal to [`Sparsity::Dense`] except for the order of sums. Layers that silence gates below a
    /// threshold that depends on the token are computed in the same way. Layers with other
    /// activations are dense.
    Exact,
    /// ReLU family: ignores neurons that the layer's predictor rules out, and computes the others
    /// as in [`Sparsity::Exact`]. Layers without a predictor are computed as in
    /// [`Sparsity::Exact`].
    Predicted,
    /// Any gated activation: computes up and down only for neurons whose gate activation exceeds
    /// the layer's activation threshold in magnitude. Layers without a threshold are dense.
    Threshold,
}

impl Sparsity {
    /// Every mode.
    pub const ALL: [Sparsity; 4] = [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted, Sparsity::Threshold];

    /// Returns the name of the mode on the command line.
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
