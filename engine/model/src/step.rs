//! The program of a layer, as data.

use super::{AltupStep, NormSlot};

/// A `[tokens, d_model]` buffer of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// The residual stream.
    Residual,
    /// Normed input of attention (and of the FFN where both share it).
    Normed,
    /// Normed input of the FFN where it differs from attention's and both are needed at once.
    NormedFfn,
    /// Output of attention or FFN, before it is added to the residual.
    Out,
}

/// One coarse operation of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `into = norm(from)`; `from` and `into` may be the same.
    Norm {
        /// The norm.
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
    /// `Out = recurrent mixer(from)`: projections, short convolution, scan, gated norm, output projection.
    Recurrent {
        /// Input.
        from: Register,
    },
    /// Chooses the experts of the layer's FFN by `from`; without this step, the FFN chooses them by its own input.
    Route {
        /// Input of the router.
        from: Register,
    },
    /// `Out = ffn(from)`, dense or MoE.
    Ffn {
        /// Input.
        from: Register,
    },
    /// `Out = dense FFN(from)`: the one beside the experts.
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
    /// `Residual += Out`, times [`ModelConfig::residual_scale`](super::ModelConfig::residual_scale).
    AddOut,
    /// `Out =` what [`PerLayerWeights`](super::PerLayerWeights) make of the layer's own input and `Residual`.
    PerLayerInput,
    /// A step of a model with several streams.
    Altup(AltupStep),
    /// `Residual *=` [`LayerWeights::output_scale`](super::LayerWeights::output_scale).
    Scale,
}

impl Step {
    /// The usual decoder layer: norm, attention, residual; norm, FFN, residual.
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

    /// The usual layer whose experts are chosen by the residual stream before attention (SmallThinker). The router comes behind the
    /// norm, which does not change what it reads.
    pub fn sequential_routed_early() -> Vec<Step> {
        let mut steps = Step::sequential();
        steps.insert(1, Step::Route { from: Register::Residual });
        steps
    }

    /// The layer with norms behind its blocks: attention, norm, residual; FFN, norm, residual (OLMo 2).
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

    /// The layer with norms before and behind its blocks (Gemma 2, GLM 4).
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

    /// The layer whose attention and FFN read the same norm of the residual stream (Falcon 7B, Cohere 2).
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
