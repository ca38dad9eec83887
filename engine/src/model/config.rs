//! Sizes and variants of a model: everything that the forward pass needs beside the weights.

use std::{fmt, sync::Arc};

use super::{Register, Step};
pub use crate::cpu::ops::{Activation, DeltaNetShape, Mamba2Shape};

/// Kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * w`
    Rms,
    /// `(x - mean) / sqrt(var + eps) * w + b`
    Layer,
}

/// Pairs of a head's elements that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeOrder {
    /// Neighbours `(2i, 2i+1)`: GGUF files of the llama family.
    Normal,
    /// Halves `(i, i + dims/2)`: GPT-NeoX, Falcon, Qwen, Gemma, Phi, and every Hugging Face layout.
    NeoX,
}

/// Scaling of positions beyond the training length.
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
        /// True if the dimensions of both limits are rounded outwards (default; gpt-oss does not).
        truncate: bool,
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

/// Rotary position embedding (Su et al. 2021): one table of rotations, used by any number of layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Rotated elements of each head, from its first; fewer than `head_dim` when partial.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Pairing.
    pub order: RopeOrder,
    /// Scaling of positions.
    pub scaling: RopeScaling,
}

/// Encoding of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Queries and keys are rotated in the layers that name a table ([`AttentionConfig::rope`]); others see no positions.
    Rotary,
    /// A row of `position_embd` is added to the embedding (OPT).
    Learned {
        /// Added to the position to find the row (OPT: 2).
        offset: usize,
    },
}

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
}

impl Router {
    /// A softmax over all experts.
    pub const fn softmax(renormalise: bool) -> Self {
        Router { score: RouterScore::Softmax, groups: None, renormalise, scale: 1.0 }
    }

    /// A sigmoid of each expert's logit.
    pub const fn sigmoid(renormalise: bool) -> Self {
        Router { score: RouterScore::Sigmoid, ..Router::softmax(renormalise) }
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
        if self.scale != 1.0 {
            write!(f, " times {}", self.scale)?;
        }
        Ok(())
    }
}

/// Sizes of the experts of an MoE model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Experts per layer.
    pub count: usize,
    /// Experts used per token.
    pub used: usize,
    /// Choice of experts.
    pub router: Router,
    /// Neurons per expert.
    pub n_ff: usize,
}

/// Multi-head latent attention (DeepSeek V2): keys and values of all heads are products of one latent, which is what is cached. Queries
/// are brought to the latent's width, attend to it, and each head's values are a product of the latents' weighted sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentConfig {
    /// Elements of the latent.
    pub rank: usize,
    /// Elements of a head's query that are not rotated.
    pub nope_dim: usize,
    /// Elements of a head's value.
    pub v_dim: usize,
    /// Elements that queries are projected from, where they are low-rank.
    pub q_rank: Option<usize>,
}

/// Attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Elements per head (queries, keys and values alike).
    pub head_dim: usize,
    /// A query sees itself and the `window - 1` keys before it; `None`: all of them.
    pub window: Option<usize>,
    /// Table in [`ModelConfig::ropes`] by which queries and keys are rotated; `None`: they are not.
    pub rope: Option<usize>,
    /// Factor on query-key products (usually `1/sqrt(head_dim)`).
    pub scale: f32,
    /// `cap * tanh(s / cap)` on attention scores.
    pub softcap: Option<f32>,
    /// True if the query matrix also has a gate per head, `[query | gate]` for each: outputs of heads are multiplied by its sigmoid.
    pub gated: bool,
    /// True if each head's values are divided by their root mean square (Gemma 4).
    pub norm_values: bool,
    /// The earlier layer whose keys and values this one reads; it has none of its own then.
    pub kv_from: Option<usize>,
    /// Latent from which keys and values come: a key is `[rotated | latent]`, `head_dim` elements of one head, and its own value.
    pub latent: Option<LatentConfig>,
    /// Rows of a gate matrix of its own: one per head or per element, by whose softplus outputs of heads are multiplied; 0 without.
    pub gate_rows: usize,
}

impl AttentionConfig {
    /// Elements of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Elements of a key that are rotated ahead of its latent.
    pub fn latent_rope_dim(&self) -> usize {
        self.head_dim - self.latent.map_or(self.head_dim, |latent| latent.rank)
    }

    /// Columns of the output matrix.
    pub fn output_cols(&self) -> usize {
        self.latent.map_or(self.q_dim(), |latent| self.n_head * latent.v_dim)
    }

    /// Heads whose values are cached beside the keys: none where keys are their own values.
    pub fn value_heads(&self) -> usize {
        if self.latent.is_some() { 0 } else { self.n_kv_head }
    }

    /// Rows of keys and values that a token caches.
    pub fn cached_rows(&self) -> usize {
        self.n_kv_head + self.value_heads()
    }

    /// Rows of the query matrix.
    pub fn q_rows(&self) -> usize {
        if let Some(latent) = self.latent {
            return self.n_head * (latent.nope_dim + self.latent_rope_dim());
        }
        if self.gated { 2 * self.q_dim() } else { self.q_dim() }
    }

    /// Elements of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_head * self.head_dim
    }

    /// Elements that are appended to its keys (or values) by a token: none where they are another layer's.
    pub fn own_kv_dim(&self) -> usize {
        if self.kv_from.is_some() { 0 } else { self.kv_dim() }
    }
}

/// A mixer of tokens whose memory is a state of fixed size, in place of keys and values.
#[derive(Debug, Clone, PartialEq)]
pub enum RecurrentConfig {
    /// Gated delta net (Yang et al. 2024) behind a short convolution.
    DeltaNet {
        /// Heads and their sizes.
        shape: DeltaNetShape,
        /// Taps of the convolution.
        taps: usize,
    },
    /// Mamba-2 (Dao and Gu 2024): a selective state space behind a short convolution.
    Mamba2 {
        /// Heads and their sizes.
        shape: Mamba2Shape,
        /// Taps of the convolution.
        taps: usize,
        /// Least and largest step of a token.
        step_limits: [f32; 2],
    },
    /// A short convolution between two gates (LFM2).
    ShortConv {
        /// Channels, each with its own filter.
        channels: usize,
        /// Taps of the convolution.
        taps: usize,
    },
}

impl RecurrentConfig {
    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            RecurrentConfig::DeltaNet { .. } => "gated delta net",
            RecurrentConfig::Mamba2 { .. } => "Mamba-2",
            RecurrentConfig::ShortConv { .. } => "short convolution",
        }
    }

    /// Floats of its state: the last inputs of the convolution, and what the scan remembers.
    pub fn state(&self) -> [usize; 2] {
        match self {
            RecurrentConfig::DeltaNet { shape, taps } => [shape.qkv() * (taps - 1), shape.state()],
            RecurrentConfig::Mamba2 { shape, taps, .. } => [shape.channels() * (taps - 1), shape.state_len()],
            RecurrentConfig::ShortConv { channels, taps } => [channels * (taps - 1), 0],
        }
    }
}

/// Configuration of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Program of the layer.
    pub steps: Arc<[Step]>,
    /// Its attention, if it has one.
    pub attention: Option<AttentionConfig>,
    /// Its recurrent mixer, if it has one.
    pub recurrent: Option<RecurrentConfig>,
    /// Neurons of its dense FFN; for MoE layers see [`Experts::n_ff`].
    pub n_ff: usize,
}

impl LayerConfig {
    /// The register that the router reads ahead of the FFN; `None` if it reads the FFN's input.
    pub fn early_router_input(&self) -> Option<Register> {
        self.steps.iter().find_map(|step| match step {
            Step::Route { from } => Some(*from),
            _ => None,
        })
    }

    /// The FFN's step in the program, and the register that it reads.
    fn ffn_step(&self) -> Option<(usize, Register)> {
        self.steps.iter().enumerate().find_map(|(at, step)| match step {
            Step::Ffn { from } => Some((at, *from)),
            _ => None,
        })
    }

    /// The register that the program's FFN reads.
    pub fn ffn_input(&self) -> Option<Register> {
        self.ffn_step().map(|(_, from)| from)
    }

    /// The step of the norm whose output the FFN reads.
    pub fn ffn_norm(&self) -> Option<usize> {
        let (ffn, from) = self.ffn_step()?;
        self.steps[..ffn].iter().rposition(|step| matches!(step, Step::Norm { into, .. } if *into == from))
    }

    /// The register that the program's FFN reads, if the residual stream changes between its norm and the FFN, as in layers with
    /// attention and FFN in parallel: the norm's input is then overwritten before the FFN runs.
    pub fn early_ffn_input(&self) -> Option<Register> {
        let ((ffn, from), norm) = (self.ffn_step()?, self.ffn_norm()?);
        self.steps[norm..ffn].contains(&Step::AddOut).then_some(from)
    }
}

/// Growth of queries with their position `p`, by which attention stays sharp in long contexts (Llama 4, Ministral 3):
/// `q *= 1 + beta * ln(1 + floor(p / length))`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScale {
    /// Weight of the logarithm.
    pub beta: f32,
    /// Positions per step, at least 1: the length the model was trained with.
    pub length: usize,
}

impl QueryScale {
    /// Factor of the query at `position`.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.beta * ((1 + position / self.length) as f32).ln()
    }
}

/// Sizes of a model with several streams ([`AltupWeights`](super::AltupWeights)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AltupConfig {
    /// Streams, of which layers compute the first.
    pub streams: usize,
    /// Rank of the path beside attention.
    pub rank: usize,
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
    /// Neurons of the widest dense layer; for MoE layers see [`Experts::n_ff`].
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
    /// Tables of rotations that layers name.
    pub ropes: Vec<Rope>,
    /// FFN activation.
    pub activation: Activation,
    /// Mixture of experts, in MoE models.
    pub experts: Option<Experts>,
    /// Elements of the input that each layer has of its own beside the residual stream ([`PerLayerTable`](super::PerLayerTable)).
    pub per_layer_input: Option<usize>,
    /// Streams beside the residual one, in models that have several.
    pub altup: Option<AltupConfig>,
    /// Factor on embeddings (Gemma: `sqrt(d)`).
    pub embedding_scale: f32,
    /// Factor on the outputs of attention and FFN where they are added to the residual stream (Granite).
    pub residual_scale: f32,
    /// Factor on logits (Cohere, Granite); loading multiplies it into the final norm.
    pub logit_scale: f32,
    /// Growth of queries with their position.
    pub query_scale: Option<QueryScale>,
    /// `cap * tanh(x / cap)` on logits.
    pub final_softcap: Option<f32>,
    /// One per layer.
    pub layers: Vec<LayerConfig>,
}

impl ModelConfig {
    /// Number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// The attention of every layer that has one.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionConfig> {
        self.layers.iter().filter_map(|layer| layer.attention.as_ref())
    }

    /// The same, to change it.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = &mut AttentionConfig> {
        self.layers.iter_mut().filter_map(|layer| layer.attention.as_mut())
    }

    /// Elements of the inputs that the layers have of their own, of a token and all layers together.
    pub fn per_layer_inputs(&self) -> usize {
        self.per_layer_input.map_or(0, |width| width * self.n_layer())
    }

    /// The layer whose keys and values `layer` reads: itself, or the one it shares them with; `None` without attention.
    pub fn kv_source(&self, layer: usize) -> Option<usize> {
        let attention = self.layers.get(layer)?.attention.as_ref()?;
        Some(attention.kv_from.unwrap_or(layer))
    }

    /// True if a layer has a recurrent state, which cannot be taken back to an earlier token.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.recurrent.is_some())
    }

    /// Bytes of the recurrent states of one conversation.
    pub fn state_bytes(&self) -> u64 {
        let states = self.layers.iter().filter_map(|layer| layer.recurrent.as_ref());
        states.flat_map(RecurrentConfig::state).map(|floats| (floats * size_of::<f32>()) as u64).sum()
    }

    /// Gives every layer the program `steps`.
    pub fn set_steps(&mut self, steps: Vec<Step>) {
        let steps: Arc<[Step]> = steps.into();
        self.layers.iter_mut().for_each(|layer| layer.steps = Arc::clone(&steps));
    }

    /// Index of `rope` among [`ModelConfig::ropes`], where it is added if it is new.
    pub fn add_rope(&mut self, rope: Rope) -> usize {
        self.ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        })
    }

    /// The rotations of `layer`'s queries and keys.
    pub fn rope(&self, layer: usize) -> Option<&Rope> {
        self.ropes.get(self.layers.get(layer)?.attention.as_ref()?.rope?)
    }
}
