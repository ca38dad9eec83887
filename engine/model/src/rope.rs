//! Positions: rotary embedding with its scalings, and learned positions.

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
    /// Base of the frequencies raised in contexts beyond the trained length ("dynamic NTK"). It is raised for the context's length, not,
    /// as the method has it, for the number of tokens so far: keys in the cache keep their rotations.
    Dynamic {
        /// Ratio by which the base grows with the length.
        factor: f32,
        /// Length the model was trained with.
        original_context: usize,
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
    /// Queries and keys are rotated in the layers that name a table ([`AttentionConfig::rope`](super::AttentionConfig::rope)); others see no positions.
    Rotary,
    /// A row of `position_embd` is added to the embedding (OPT).
    Learned {
        /// Added to the position to find the row (OPT: 2).
        offset: usize,
    },
}

/// The magnitude YaRN gives cos and sin when a file names none (equation 22 of the paper, with `scale` 1).
pub(super) fn yarn_magnitude(factor: f32, scale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}
