//! Routers of MoE layers, which choose and weight experts.

use std::fmt;

/// Function that turns a router's logits into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterScore {
    /// `softmax` over all experts.
    Softmax,
    /// The logits choose. The weights are their `softmax` over the chosen experts (gpt-oss).
    SoftmaxOfChosen,
    /// `sigmoid` of each logit (DeepSeek V3, GLM 4.5).
    Sigmoid,
    /// The logits choose two experts. Each is weighted by a `softmax` over the experts not chosen
    /// before it whose logits are within 2 % of its own (SparseMixer, Liu et al. 2023;
    /// Phi-3.5-MoE).
    SparseMixer,
}

impl RouterScore {
    /// Returns GGUF's number of the score; 0 if GGUF has none.
    pub(crate) fn number(self) -> u32 {
        match self {
            RouterScore::Softmax => 1,
            RouterScore::Sigmoid => 2,
            RouterScore::SoftmaxOfChosen => 3,
            // Only one family has this score.
            RouterScore::SparseMixer => 0,
        }
    }
}

/// Groups of experts of equal size. The best groups are chosen first (DeepSeek).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups whose experts may be chosen.
    pub used: usize,
    /// Number of best experts whose sum is the score of a group (DeepSeek V2: 1, V3: 2).
    pub best: usize,
}

/// Rule that chooses and weights experts. It chooses the largest scores plus selection bias
/// ([`ExpertWeights::selection_bias`](super::ExpertWeights::selection_bias)) and weights by the
/// scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Router {
    /// Function from logits to scores.
    pub score: RouterScore,
    /// Groups, if only experts of some groups may be chosen.
    pub groups: Option<ExpertGroups>,
    /// True to divide the weights of the chosen experts by their sum.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// True if the weights multiply the inputs of the chosen experts rather than their outputs
    /// (Llama 4).
    pub weighs_inputs: bool,
}

impl Router {
    /// Returns a router with a softmax over all experts.
    pub const fn softmax(renormalise: bool) -> Self {
        Router { score: RouterScore::Softmax, groups: None, renormalise, scale: 1.0, weighs_inputs: false }
    }

    /// Returns a router with a sigmoid of each expert's logit.
    pub const fn sigmoid(renormalise: bool) -> Self {
        Router { score: RouterScore::Sigmoid, ..Router::softmax(renormalise) }
    }

    /// Returns the factors on the input and on the output of a chosen expert with this weight.
    pub fn factors(&self, weight: f32) -> [f32; 2] {
        if self.weighs_inputs { [weight, 1.0] } else { [1.0, weight] }
    }
}

impl fmt::Display for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.score {
            RouterScore::Softmax => "softmax",
            RouterScore::SoftmaxOfChosen => "softmax of the chosen experts",
            RouterScore::Sigmoid => "sigmoid",
            RouterScore::SparseMixer => "SparseMixer",
        })?;
        if let Some(groups) = self.groups {
            write!(f, " in {} of {} groups", groups.used, groups.count)?;
        }
        if self.weighs_inputs {
            f.write_str(" on their inputs")?;
        }
        if self.scale != 1.0 {
            write!(f, " times {}", self.scale)?;
        }
        Ok(())
    }
}
