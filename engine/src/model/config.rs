//! Sizes and variants of a model: everything the forward driver needs to know beside the weights.

use std::{fmt, str::FromStr};

use super::{Register, Step};
use crate::error::{Error, Result};

/// Kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * w`
    Rms,
    /// `(x - mean) / sqrt(var + eps) * w + b`
    Layer,
}

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeOrder {
    /// Neighbours `(2i, 2i+1)`: GGUF files of the llama family.
    Normal,
    /// Halves `(i, i + dims/2)`: GPT-NeoX, Falcon, Qwen, Gemma, Phi, and every Hugging Face layout.
    NeoX,
}

/// How positions beyond the training length are mapped.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Positions as they are.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Ratio of the wanted to the original length.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023): low frequencies interpolated, high ones kept, attention rescaled.
    Yarn {
        /// Ratio of the wanted to the original length.
        factor: f32,
        /// Length the model was trained with.
        original_context: usize,
        /// Magnitude factor applied to cos and sin; computed from `factor` when the file has none.
        attention_factor: f32,
        /// Rotations at or above which a dimension is kept (default 32).
        beta_fast: f32,
        /// Rotations at or below which a dimension is interpolated (default 1).
        beta_slow: f32,
    },
    /// One divisor per rotated pair, `[dims / 2]` (Llama 3.1's `rope_freqs.weight`, Phi-3's long and short factors).
    Factors {
        /// Divisors used while the context is at most `original_context` (or always, when there is only one set).
        short: Vec<f32>,
        /// Divisors for longer contexts.
        long: Option<Vec<f32>>,
        /// Length the model was trained with.
        original_context: usize,
        /// Magnitude factor applied to cos and sin.
        attention_factor: f32,
    },
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Rotated elements of each head; fewer than `head_dim` when partial.
    pub dims: usize,
    /// Pairing.
    pub order: RopeOrder,
    /// Scaling of positions, for layers that do not say otherwise.
    pub scaling: RopeScaling,
}

/// How the model knows positions.
#[derive(Debug, Clone, PartialEq)]
pub enum Position {
    /// Queries and keys are rotated; the base is per layer ([`LayerConfig::rope_base`]).
    Rope(Rope),
    /// A row of `position_embd` is added to the embedding (OPT).
    Learned {
        /// Added to the position to find the row (OPT: 2).
        offset: usize,
    },
}

/// Form of the FFN's hidden activation, `g` being the gate's and `u` the up matrix's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `relu(g) * u`, or `relu(u)` without a gate.
    Relu,
    /// `relu(g)^2 * u`, or `relu(u)^2`.
    ReluSquared,
    /// `silu(g) * u`, or `silu(u)`.
    Silu,
    /// `gelu(g) * u` with the tanh approximation, or `gelu(u)`.
    GeluTanh,
    /// The same with the error function.
    GeluErf,
    /// `relu(g) * relu(u)` (Bamboo, TurboSparse).
    DRelu,
}

impl Activation {
    /// Every form.
    pub const ALL: [Activation; 6] = [
        Activation::Relu,
        Activation::ReluSquared,
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::DRelu,
    ];

    /// The name used in metadata (`{arch}.hidden_activation`) and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Relu => "relu",
            Activation::ReluSquared => "relu2",
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
            Activation::GeluErf => "gelu",
            Activation::DRelu => "drelu",
        }
    }

    /// Whether hidden values are exactly zero for neurons that do not fire.
    pub const fn is_sparse(self) -> bool {
        matches!(self, Activation::Relu | Activation::ReluSquared | Activation::DRelu)
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Activation {
    type Err = Error;

    /// Understands this engine's names and those of Hugging Face's `hidden_act`.
    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            // ProSparse's FATReLU cuts at a small positive value; PowerInfer, too, runs it as a ReLU.
            "relu" | "fatrelu" => Ok(Activation::Relu),
            "relu2" | "relu_squared" | "relu^2" => Ok(Activation::ReluSquared),
            "silu" | "swish" | "swiglu" => Ok(Activation::Silu),
            "gelu_pytorch_tanh" | "gelu_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
            "gelu" | "gelu_erf" | "gelu_python" => Ok(Activation::GeluErf),
            "drelu" => Ok(Activation::DRelu),
            _ => Err(Error::Unsupported {
                what: "activation",
                got: text.to_owned(),
                supported: Activation::ALL.map(Activation::name).join(", "),
            }),
        }
    }
}

/// Mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Experts per layer.
    pub count: usize,
    /// Experts used per token.
    pub used: usize,
    /// Whether the weights of those used are divided by their sum.
    pub renormalise: bool,
    /// Neurons per expert.
    pub n_ff: usize,
}

/// What may differ between layers.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// A query sees itself and the `window - 1` keys before it; `None`: all of them.
    pub window: Option<usize>,
    /// Base of the rotary frequencies (unused with learned positions).
    pub rope_base: f32,
    /// Whether [`Rope::scaling`] applies to this layer (Gemma 3: only to global layers).
    pub rope_scaled: bool,
}

/// Sizes and variants of one model. All sizes are checked against the weights when it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// GGUF's name of the architecture.
    pub architecture: String,
    /// The model's own name, or the file's.
    pub name: String,
    /// Width of the residual stream, `d`.
    pub d_model: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Elements per head (queries, keys and values alike).
    pub head_dim: usize,
    /// Neurons per layer (dense FFN); for mixtures see [`Experts::n_ff`].
    pub n_ff: usize,
    /// Rows of the head.
    pub n_vocab: usize,
    /// Tokens the model was trained to see, the default context.
    pub context_length: usize,
    /// Kind of norm, for the whole model.
    pub norm: NormKind,
    /// Added under the root.
    pub norm_eps: f32,
    /// Positions.
    pub position: Position,
    /// FFN activation.
    pub activation: Activation,
    /// Mixture of experts, if it is one.
    pub experts: Option<Experts>,
    /// Factor on embeddings (Gemma: `sqrt(d)`).
    pub embedding_scale: f32,
    /// Factor on query-key products (usually `1/sqrt(head_dim)`).
    pub attention_scale: f32,
    /// `cap * tanh(s / cap)` on attention scores.
    pub attention_softcap: Option<f32>,
    /// The same on logits.
    pub final_softcap: Option<f32>,
    /// One per layer.
    pub layers: Vec<LayerConfig>,
    /// Program of every layer.
    pub steps: Vec<Step>,
}

impl ModelConfig {
    /// Number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// The register the program's FFN reads, where the residual stream moves on between its norm and the FFN: attention and FFN
    /// stand side by side, and what the norm saw is gone when the FFN's turn comes.
    pub fn early_ffn_input(&self) -> Option<Register> {
        let ffn = self.steps.iter().position(|step| matches!(step, Step::Ffn { .. }))?;
        let Step::Ffn { from } = self.steps[ffn] else { return None };
        let norm = |step: &Step| matches!(step, Step::Norm { into, .. } if *into == from);
        let norm = self.steps[..ffn].iter().rposition(norm)?;
        self.steps[norm..ffn].contains(&Step::AddOut).then_some(from)
    }

    /// Elements of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_head * self.head_dim
    }
}
