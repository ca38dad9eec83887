//! The program of a layer, as data.

use super::{AltupStep, NormSlot};

/// A `[tokens, d_model]` buffer of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// The residual stream.
    Residual,
    /// Normed input of attention. The FFN reads it too if both share a norm.
    Normed,
    /// Normed input of the FFN, if it differs from attention's and both exist at once.
    NormedFfn,
    /// Output of attention or FFN, before its addition to the residual stream.
    Out,
}

/// One coarse operation of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `into = norm(from)`; `from` and `into` may be the same.
    Norm {
        /// Place of the norm in the layer.
        norm: NormSlot,
        /// Input.
        from: Register,
        /// Output.
        into: Register,
    },
    /// `Out = attention(from)`: QKV, biases, QK-norm, rope, KV append, softmax, output projection.
    Attention {
        /// Input.
        from: Register,
    },
    /// `Out = recurrent mixer(from)`: projections, short convolution, scan, gated norm, output
    /// projection.
    Recurrent {
        /// Input.
        from: Register,
    },
    /// The router reads `from` and chooses the experts of the layer's FFN. Without this step, it
    /// reads the FFN's input.
    Route {
        /// Input of the router.
        from: Register,
    },
    /// `Out = ffn(from)`, dense or MoE.
    Ffn {
        /// Input.
        from: Register,
    },
    /// `Out = dense FFN(from)`, for the dense FFN beside the experts.
    DenseFfn {
        /// Input.
        from: Register,
    },
    /// `into += from`
    Add {
        /// The summand.
        from: Register,
        /// The sum.
        into: Register,
    },
    /// `Residual += Out`, times
    /// [`ModelConfig::residual_scale`](super::ModelConfig::residual_scale).
    AddOut,
    /// `Out =` [`PerLayerWeights`](super::PerLayerWeights) applied to the layer's own input and
    /// `Residual`.
    PerLayerInput,
    /// A step of a model with several streams (AltUp).
    Altup(AltupStep),
    /// `Residual *=` [`LayerWeights::output_scale`](super::LayerWeights::output_scale).
    Scale,
}

impl Step {
    /// Returns the usual decoder layer: norm, attention, residual; norm, FFN, residual.
    pub fn sequential() -> Vec<Step> {
        use Register::{Normed, Residual};
        vec![
            Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed },
            Step::Attention { from: Normed },
            Step::AddOut,
            Step::Norm { norm: NormSlot::Ffn, from: Residual, into: Normed },
            Step::Ffn { from: Normed },
            Step::AddOut,
        ]
    }

    /// Returns the usual layer, in which the residual stream before attention chooses the experts
    /// (SmallThinker). The router step follows the norm, which does not change the router's input.
    pub fn sequential_routed_early() -> Vec<Step> {
        let mut steps = Step::sequential();
        steps.insert(1, Step::Route { from: Register::Residual });
        steps
    }

    /// Returns the layer with norms after attention and FFN: attention, norm, residual; FFN, norm,
    /// residual (OLMo 2).
    pub fn norms_after() -> Vec<Step> {
        use Register::{Out, Residual};
        vec![
            Step::Attention { from: Residual },
            Step::Norm { norm: NormSlot::PostAttention, from: Out, into: Out },
            Step::AddOut,
            Step::Ffn { from: Residual },
            Step::Norm { norm: NormSlot::PostFfn, from: Out, into: Out },
            Step::AddOut,
        ]
    }

    /// Returns the layer with norms before and after attention and FFN (Gemma 2, GLM 4).
    pub fn norms_around() -> Vec<Step> {
        use Register::{Normed, Out, Residual};
        vec![
            Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed },
            Step::Attention { from: Normed },
            Step::Norm { norm: NormSlot::PostAttention, from: Out, into: Out },
            Step::AddOut,
            Step::Norm { norm: NormSlot::Ffn, from: Residual, into: Normed },
            Step::Ffn { from: Normed },
            Step::Norm { norm: NormSlot::PostFfn, from: Out, into: Out },
            Step::AddOut,
        ]
    }

    /// Returns the layer whose attention and FFN read the same norm of the residual stream (Falcon
    /// 7B, Cohere 2).
    pub fn parallel() -> Vec<Step> {
        use Register::{Normed, Residual};
        vec![
            Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed },
            Step::Attention { from: Normed },
            Step::AddOut,
            Step::Ffn { from: Normed },
            Step::AddOut,
        ]
    }
}
