//! Configuration of a layer's attention, divided by subject.

use thermocline_cpu::ops::{AttentionWindow, HeadSizes};

use super::LatentConfig;
use crate::KeyBias;

/// Sizes and variants of the attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Numbers and lengths of heads.
    pub heads: HeadSizes,
    /// How scores depend on positions.
    pub positions: HeadPositions,
    /// Window of keys that a query reads. `None`: itself and all keys before it.
    pub window: Option<AttentionWindow>,
    /// True if a token of a picture also reads the later tokens of its picture (Gemma 3).
    pub whole_pictures: bool,
    /// Scales of query-key products.
    pub scores: ScoreScaling,
    /// Scales of values.
    pub values: ValueScaling,
    /// Gates that multiply the heads' outputs.
    pub gate: Option<HeadGates>,
    /// Earlier layer whose keys and values this layer reads. This layer then has none of its own.
    pub kv_from: Option<usize>,
    /// Latent of latent attention. A key has one head of `head_dim` elements, `[rotated | latent]`,
    /// and is also the value.
    pub latent: Option<LatentConfig>,
}

/// How the scores of a layer depend on positions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadPositions {
    /// Table in [`ModelConfig::ropes`](crate::ModelConfig::ropes) for the rotation of queries and
    /// keys; `None`: no rotation.
    pub rope: Option<usize>,
    /// True if norms of query and key heads follow the rotation instead of preceding it (HunYuan).
    /// The rotations must not change lengths.
    pub norm_after_rope: bool,
    /// Biases of scores by the position of the key, in place of rotations (ALiBi).
    pub key_bias: Option<KeyBias>,
}

/// Scales of query-key products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreScaling {
    /// Factor on query-key products (usually `1/sqrt(head_dim)`).
    pub scale: f32,
    /// Cap on attention scores: `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// Growth of queries with their position, also in latent attention.
    pub query_scale: Option<QueryScale>,
}

/// Growth of queries with their position `p`, which keeps attention sharp in long contexts (Llama
/// 4, Ministral 3, Mistral 4): `q *= 1 + beta * ln(1 + floor((p + offset) / length))`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScale {
    /// Weight of the logarithm.
    pub beta: f32,
    /// Positions per step, at least 1: the context length of the training.
    pub length: usize,
    /// Offset on positions; 1 if the first position counts as 1 (Llama 4).
    pub offset: usize,
}

/// Scales of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueScaling {
    /// Factor on values.
    pub scale: f32,
    /// True if each head's values are first divided by their root mean square (Gemma 4).
    pub normed: bool,
}

/// Gates that multiply the heads' outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadGates {
    /// The query matrix has `[query | gate]` for each head. The sigmoid of the gate multiplies the
    /// head's output.
    InQueries,
    /// A separate matrix has the gates.
    OwnMatrix {
        /// Rows of the matrix, one per head or per element.
        rows: usize,
        /// Function of a gate, which multiplies the outputs.
        function: GateFunction,
    },
}

/// Function of the product of a separate gate matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateFunction {
    /// `ln(1 + e^x)` (Laguna).
    Softplus,
    /// `1 / (1 + e^-x)` (Muse Glimmer).
    Sigmoid,
}

impl AttentionConfig {
    /// Returns the window of keys that a query reads.
    pub fn seen(&self) -> AttentionWindow {
        self.window.unwrap_or(AttentionWindow::ALL)
    }

    /// Returns the number of rotated elements in front of a key's latent.
    pub fn latent_rope_dim(&self) -> usize {
        self.latent.map_or(0, |latent| self.heads.head_dim - latent.rank)
    }

    /// Returns the number of elements of all heads' outputs together: the columns of the output
    /// matrix.
    pub fn output_cols(&self) -> usize {
        self.latent.map_or(self.heads.out_dim(), |latent| self.heads.n_head * latent.v_dim)
    }

    /// Returns the number and the length of the heads whose keys are cached, and of those whose
    /// values are cached beside the keys. The latter number is 0 if keys are also the values.
    pub fn cached_heads(&self) -> [(usize, usize); 2] {
        let HeadSizes { n_kv_head, head_dim, value_dim, .. } = self.heads;
        [(n_kv_head, head_dim), (if self.latent.is_some() { 0 } else { n_kv_head }, value_dim)]
    }

    /// Returns the bytes of keys and values that a token adds to the KV cache. `row_bytes` returns
    /// the bytes of a row of so many elements.
    pub fn cached_bytes(&self, row_bytes: impl Fn(usize) -> usize) -> u64 {
        self.cached_heads().map(|(heads, len)| (heads * row_bytes(len)) as u64).iter().sum()
    }

    /// Returns the number of rows of the query matrix.
    pub fn q_rows(&self) -> usize {
        match self.latent {
            Some(latent) => self.heads.n_head * (latent.nope_dim + self.latent_rope_dim()),
            None if self.gate == Some(HeadGates::InQueries) => 2 * self.heads.q_dim(),
            None => self.heads.q_dim(),
        }
    }

    /// Returns the number of gates of a token.
    pub fn gates(&self) -> usize {
        if self.gate == Some(HeadGates::InQueries) { self.heads.q_dim() } else { self.gate_rows() }
    }

    /// Returns the number of rows of the separate gate matrix; 0 without.
    pub fn gate_rows(&self) -> usize {
        match self.gate {
            Some(HeadGates::OwnMatrix { rows, .. }) => rows,
            Some(HeadGates::InQueries) | None => 0,
        }
    }

    /// Returns the number of key elements that a token adds to the layer's KV cache; 0 if the keys
    /// are another layer's.
    pub fn own_k_dim(&self) -> usize {
        if self.kv_from.is_some() { 0 } else { self.heads.k_dim() }
    }

    /// Returns the number of value elements that a token adds to the layer's KV cache; 0 if the
    /// values are another layer's.
    pub fn own_v_dim(&self) -> usize {
        if self.kv_from.is_some() { 0 } else { self.heads.v_dim() }
    }
}

impl HeadPositions {
    /// Returns the layer's entry in `tables`, which has one entry per rotation table of the model.
    pub fn rope_in<'a, T>(&self, tables: &'a [T]) -> Option<&'a T> {
        tables.get(self.rope?)
    }
}

impl QueryScale {
    /// Returns the factor on the query at `position`.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.beta * ((1 + (position + self.offset) / self.length) as f32).ln()
    }
}
