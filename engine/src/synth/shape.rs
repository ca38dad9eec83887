//! The sizes of a model, by name.

use serde::Serialize;

use super::shapes::shapes;
use crate::error::{Error, Result};

/// Architecture family of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynthFamily {
    /// RMS norm, rotary positions, gated FFN.
    Llama,
    /// The same with ReLU on gate and up (dReLU).
    Bamboo,
    /// Layer norm, learned positions, ungated FFN, biases, tied head.
    Opt,
    /// Layer norms, attention and FFN side by side, fused QKV, ungated FFN.
    Falcon,
    /// Sinks, biases, windows, experts with a clamped SwiGLU.
    GptOss,
    /// Gated delta nets, and attention with gated heads in every fourth layer.
    Qwen35,
    /// Two head sizes, windows, an input of each layer's own, last layers that read earlier keys and values, tied head.
    Gemma4,
    /// One mixer per layer: Mamba-2, attention, or ungated experts with a squared ReLU.
    NemotronH,
    /// Latent attention, a dense layer, then experts with a shared one.
    DeepSeek,
    /// Experts with a ReLU in their gate, chosen ahead of attention.
    SmallThinker,
}

impl SynthFamily {
    /// True for layer norms, false for RMS norms.
    pub(super) fn layer_norm(self) -> bool {
        matches!(self, SynthFamily::Opt | SynthFamily::Falcon)
    }

    /// True if the FFN has a gate.
    pub(super) fn gated(self) -> bool {
        !matches!(self, SynthFamily::Opt | SynthFamily::Falcon | SynthFamily::NemotronH)
    }
}

/// Numbers of experts of an MoE model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExpertCounts {
    /// Experts per layer.
    pub experts: usize,
    /// Experts per token.
    pub used: usize,
}

/// Sizes of the gated delta nets of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetSizes {
    /// Key heads.
    pub k_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub v_heads: usize,
    /// Elements of a head, of keys and values alike.
    pub head_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Every so many layers one has attention instead.
    pub interval: usize,
}

impl DeltaNetSizes {
    /// Elements of all value heads together.
    pub(super) fn values(&self) -> usize {
        self.v_heads * self.head_dim
    }

    /// Elements of queries, keys and values together.
    pub(super) fn qkv(&self) -> usize {
        2 * self.k_heads * self.head_dim + self.values()
    }
}

/// Mixers of a model with one per layer, and the sizes of its Mamba-2 layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Sizes {
    /// A letter per layer: `M` for Mamba-2, `*` for attention, `E` for experts.
    pub mixers: &'static str,
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of heads with the same `B` and `C`.
    pub groups: usize,
    /// Elements of the state per element of a head.
    pub state: usize,
    /// Taps of the convolution.
    pub taps: usize,
}

impl Mamba2Sizes {
    /// Elements of all heads together.
    pub(super) fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: inputs, `B` and `C`.
    pub(super) fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }
}

/// Sizes of latent attention (MLA).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentSizes {
    /// Elements of the compressed queries.
    pub queries: usize,
    /// Elements of the compressed keys and values.
    pub keys: usize,
    /// Elements of a key that are not rotated.
    pub plain: usize,
    /// Elements of a key that are rotated, the same for all heads.
    pub rotated: usize,
    /// Elements of a value.
    pub value: usize,
    /// Neurons of the first layer, which has no experts.
    pub first_ff: usize,
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynthShape {
    /// Name on the command line.
    pub name: &'static str,
    /// Architecture family.
    pub family: SynthFamily,
    /// True for ReLU, whose firings follow the power law; false for SiLU, a dense model.
    pub relu: bool,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads.
    pub n_kv_head: usize,
    /// Elements per head where those of all heads are not `d_model`.
    pub wide_head: Option<usize>,
    /// Neurons per layer; in MoE shapes, per expert.
    pub n_ff: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Context length.
    pub context: usize,
    /// Experts, in MoE shapes (gated families only).
    pub moe: Option<ExpertCounts>,
    /// Neurons of the expert that every token uses besides, where there is one.
    pub shared_ff: Option<usize>,
    /// Delta nets of the layers without attention, where there are such.
    pub delta_net: Option<DeltaNetSizes>,
    /// Mixers of a model with one per layer.
    pub mamba2: Option<Mamba2Sizes>,
    /// Latent attention, where there is such.
    pub latent: Option<LatentSizes>,
    /// True if the embedding is the output matrix too.
    pub tied: bool,
}

impl SynthShape {
    /// The shape with this name.
    pub fn named(name: &str) -> Result<SynthShape> {
        shapes().iter().copied().find(|shape| shape.name == name).ok_or_else(|| Error::Unsupported {
            what: "shape",
            got: name.to_owned(),
            supported: shapes().iter().map(|shape| shape.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// GGUF's name of the architecture. MoE shapes are Llama's with any activation, which has a key of its own.
    pub fn architecture(&self) -> &'static str {
        match self.family {
            SynthFamily::Bamboo if self.moe.is_none() => "bamboo",
            SynthFamily::Llama | SynthFamily::Bamboo => "llama",
            SynthFamily::Opt => "opt",
            SynthFamily::Falcon => "falcon",
            SynthFamily::GptOss => "gpt-oss",
            SynthFamily::Gemma4 => "gemma4",
            SynthFamily::NemotronH => "nemotron_h_moe",
            SynthFamily::DeepSeek => "deepseek2",
            SynthFamily::SmallThinker => "smallthinker",
            SynthFamily::Qwen35 if self.moe.is_some() => "qwen35moe",
            SynthFamily::Qwen35 => "qwen35",
        }
    }

    /// The delta net of layer `layer`, counted from 0; `None` where it has attention.
    pub(super) fn delta_net_of(&self, layer: usize) -> Option<DeltaNetSizes> {
        self.delta_net.filter(|sizes| !(layer + 1).is_multiple_of(sizes.interval))
    }

    /// Experts per layer; 1 for dense shapes.
    pub(super) fn experts(&self) -> usize {
        self.moe.map_or(1, |moe| moe.experts)
    }

    /// Elements per head.
    pub fn head_dim(&self) -> usize {
        self.wide_head.unwrap_or(self.d_model / self.n_head.max(1))
    }
}
