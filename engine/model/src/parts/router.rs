//! Routers of MoE layers: how experts are chosen and weighted.

use std::fmt;

/// Numbers that a router's logits become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterScore {
    /// `softmax` over all experts.
    Softmax,
    /// The logits themselves choose; weights are their `softmax` over the chosen experts (gpt-oss).
    SoftmaxOfChosen,
    /// `sigmoid` of each (DeepSeek V3, GLM 4.5).
    Sigmoid,
    /// The logits themselves choose; each of the two chosen is weighted by the `softmax` over itself and the experts not chosen before it
    /// whose logits are within 2 % of its own (SparseMixer, Liu et al. 2023; Phi-3.5-MoE).
    SparseMixer,
}

/// Experts in groups of equal size, of which the best groups are chosen first (DeepSeek).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups.
    pub count: usize,
    /// Groups whose experts may be chosen.
    pub used: usize,
    /// A group is as good as the sum of that many of its best experts (DeepSeek V2: 1, V3: 2).
    pub best: usize,
}

/// How experts are chosen and weighted: those with the largest scores plus selection bias
/// ([`ExpertWeights::selection_bias`](super::ExpertWeights::selection_bias)), by their scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Router {
    /// Scores.
    pub score: RouterScore,
    /// Groups, where choosing is limited to some of them.
    pub groups: Option<ExpertGroups>,
    /// True to divide the weights of the chosen experts by their sum.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// True if weights are factors on the inputs of the chosen experts rather than on their outputs (Llama 4).
    pub weighs_inputs: bool,
}

impl Router {
    /// A softmax over all experts.
    pub const fn softmax(renormalise: bool) -> Self {
        Router { score: RouterScore::Softmax, groups: None, renormalise, scale: 1.0, weighs_inputs: false }
    }

    /// A sigmoid of each expert's logit.
    pub const fn sigmoid(renormalise: bool) -> Self {
        Router { score: RouterScore::Sigmoid, ..Router::softmax(renormalise) }
    }

    /// Factors on the input and on the output of an expert that was chosen with this weight.
    pub fn factors(&self, weight: f32) -> [f32; 2] {
        if self.weighs_inputs { [weight, 1.0] } else { [1.0, weight] }
    }
}

impl fmt::Display for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.score {
            RouterScore::Softmax => "softmax",
            RouterScore::SoftmaxOfChosen => "softmax of the chosen",
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
