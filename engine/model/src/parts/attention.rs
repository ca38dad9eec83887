//! Attention of a layer: sizes, weights, and the form that a step names.

use super::{BoundLatent, LatentConfig, LatentWeights, LayerNorms, Linear, Norm, NormKind};
use crate::{KeyBias, Register, load::LayerTensors};
use thermocline_base::error::Result;

/// Sizes and variants of the attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Number of query heads.
    pub n_head: usize,
    /// Number of key/value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Number of elements of a query or key head.
    pub head_dim: usize,
    /// Number of elements of a value head. Equal to `head_dim` except in few models (MiMo 2).
    pub value_dim: usize,
    /// Factor on values.
    pub value_scale: f32,
    /// Sliding window: a query reads itself and the `window - 1` keys before it. `None`: all keys
    /// before it.
    pub window: Option<usize>,
    /// True if the window does not slide but begins at multiples of its length. A query then reads
    /// the keys from there up to its own (Llama 4).
    pub chunked: bool,
    /// Table in [`ModelConfig::ropes`](crate::ModelConfig::ropes) for the rotation of queries and
    /// keys; `None`: no rotation.
    pub rope: Option<usize>,
    /// Factor on query-key products (usually `1/sqrt(head_dim)`).
    pub scale: f32,
    /// Growth of queries with their position, also in latent attention.
    pub query_scale: Option<QueryScale>,
    /// Cap on attention scores: `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// True if the query matrix has `[query | gate]` for each head. The sigmoid of the gate
    /// multiplies the head's output.
    pub gated: bool,
    /// True if each head's values are divided by their root mean square (Gemma 4).
    pub norm_values: bool,
    /// Earlier layer whose keys and values this layer reads. This layer then has none of its own.
    pub kv_from: Option<usize>,
    /// Latent of latent attention. A key has one head of `head_dim` elements, `[rotated | latent]`,
    /// and is also the value.
    pub latent: Option<LatentConfig>,
    /// Rows of a separate gate matrix, one per head or per element; 0 without. A function of the
    /// gate multiplies the heads' outputs.
    pub gate_rows: usize,
    /// Function of the gate.
    pub head_gate: HeadGate,
    /// Biases of scores by the position of the key, in place of rotations (ALiBi).
    pub key_bias: Option<KeyBias>,
    /// True if norms of query and key heads follow the rotation instead of preceding it (HunYuan).
    /// The rotations must not change lengths.
    pub norm_after_rope: bool,
}

/// Function of the product of a separate gate matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadGate {
    /// `ln(1 + e^x)` (Laguna).
    Softplus,
    /// `1 / (1 + e^-x)` (Muse Glimmer).
    Sigmoid,
}

impl AttentionConfig {
    /// Returns the number of elements of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Returns the number of rotated elements in front of a key's latent.
    pub fn latent_rope_dim(&self) -> usize {
        self.head_dim - self.latent.map_or(self.head_dim, |latent| latent.rank)
    }

    /// Returns the number of elements of all heads' outputs together: the columns of the output
    /// matrix.
    pub fn output_cols(&self) -> usize {
        self.n_head * self.latent.map_or(self.value_dim, |latent| latent.v_dim)
    }

    /// Returns the number of heads whose values are cached beside the keys; 0 if keys are also the
    /// values.
    pub fn value_heads(&self) -> usize {
        if self.latent.is_some() { 0 } else { self.n_kv_head }
    }

    /// Returns the bytes of keys and values that a token adds to the KV cache. `row_bytes` returns
    /// the bytes of a row of so many elements.
    pub fn cached_bytes(&self, row_bytes: impl Fn(usize) -> usize) -> u64 {
        (self.n_kv_head * row_bytes(self.head_dim) + self.value_heads() * row_bytes(self.value_dim)) as u64
    }

    /// Returns the number of rows of the query matrix.
    pub fn q_rows(&self) -> usize {
        if let Some(latent) = self.latent {
            return self.n_head * (latent.nope_dim + self.latent_rope_dim());
        }
        if self.gated { 2 * self.q_dim() } else { self.q_dim() }
    }

    /// Returns the number of elements of all key heads together.
    pub fn k_dim(&self) -> usize {
        self.n_kv_head * self.head_dim
    }

    /// Returns the number of elements of all value heads together.
    pub fn v_dim(&self) -> usize {
        self.n_kv_head * self.value_dim
    }

    /// Returns the number of key elements that a token adds to the layer's KV cache; 0 if the keys
    /// are another layer's.
    pub fn own_k_dim(&self) -> usize {
        if self.kv_from.is_some() { 0 } else { self.k_dim() }
    }

    /// Returns the number of value elements that a token adds to the layer's KV cache; 0 if the
    /// values are another layer's.
    pub fn own_v_dim(&self) -> usize {
        if self.kv_from.is_some() { 0 } else { self.v_dim() }
    }
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

impl QueryScale {
    /// Returns the factor on the query at `position`.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.beta * ((1 + (position + self.offset) / self.length) as f32).ln()
    }
}

/// Attention weights of one layer. `d` is the width of the residual stream. Heads of queries and
/// keys have `head_dim` elements.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// Query matrix, `[n_head * head_dim, d]`; twice the rows if heads are gated.
    pub q: Linear,
    /// Key matrix, `[n_kv_head * head_dim, d]`; absent if keys are another layer's.
    pub k: Option<Linear>,
    /// Value matrix, `[n_kv_head * value_dim, d]`. Absent if values are another layer's, or the
    /// product of `k` before norm and rotation.
    pub v: Option<Linear>,
    /// Output matrix, `[d, n_head * value_dim]`.
    pub output: Linear,
    /// Norm of queries before the rotation: of each head, `[head_dim]`, or of all heads together,
    /// `[n_head * head_dim]`. A layer norm is of each head, and in the latter shape has separate
    /// weights per head.
    pub q_norm: Option<Norm>,
    /// Norm of keys before the rotation: of each head, `[head_dim]`, or of all heads together,
    /// `[n_kv_head * head_dim]`.
    pub k_norm: Option<Norm>,
    /// Score per query head of a key without a value, `[n_head]` (gpt-oss).
    pub sinks: Option<Vec<f32>>,
    /// Further weights of latent attention. With them, `q` is
    /// `[n_head * (nope_dim + rope), d or q_rank]`, `k` is `[rank + rope, d]`, and `output` is
    /// `[d, n_head * v_dim]`.
    pub latent: Option<Box<LatentWeights>>,
    /// Gate of the heads' outputs, `[n_head, d]` or `[n_head * value_dim, d]`.
    pub gate: Option<Linear>,
}

impl AttentionWeights {
    /// Iterates over all matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        let behind = self.latent.iter().flat_map(|latent| {
            let q = latent.low_q.as_ref().map(|_| &self.q);
            q.into_iter().chain(&latent.keys).chain(&latent.values)
        });
        self.inputs().chain(&self.gate).chain(behind).chain([&self.output])
    }

    /// Iterates over the matrices that read the input of attention.
    pub fn inputs(&self) -> impl Iterator<Item = &Linear> {
        let low = self.latent.as_ref().and_then(|latent| latent.low_q.as_ref()).map(|(low, _)| low);
        [low.unwrap_or(&self.q)].into_iter().chain(&self.k).chain(&self.v)
    }

    /// Loads the attention of layer `n`. Files have q, k and v separately, or as one `attn_qkv`
    /// (all q, then k, then v).
    pub(crate) fn load(at: &LayerTensors<'_>, shape: &AttentionConfig) -> Result<Self> {
        let LayerTensors { loader, n, d_model: d, norm } = *at;
        let (q_rows, k_dim, v_dim) = (shape.q_rows(), shape.k_dim(), shape.v_dim());
        let fused = format!("blk.{n}.attn_qkv");
        let (q, k, v) = if loader.has(&format!("{fused}.weight")) {
            let [q, k, v] = Linear::split(loader, &fused, d, [q_rows, k_dim, v_dim])?;
            (q, Some(k), Some(v))
        } else {
            let q = loader.linear(&format!("blk.{n}.attn_q"), q_rows, d)?;
            let own = |which: &str, rows| loader.linear(&format!("blk.{n}.attn_{which}"), rows, d);
            let keys_are_values = shape.norm_values && !loader.has(&format!("blk.{n}.attn_v.weight"));
            let (k, v) = match shape.kv_from {
                Some(_) => (None, None),
                None if keys_are_values => (Some(own("k", k_dim)?), None),
                None => (Some(own("k", k_dim)?), Some(own("v", v_dim)?)),
            };
            (q, k, v)
        };
        // The length of a norm determines whether it is of each head or of all heads together.
        let head_norm = |which: &str, all: usize| {
            let stem = format!("blk.{n}.attn_{which}_norm");
            if norm == NormKind::Layer {
                return loader.layer_norm_of_heads(&stem, all / shape.head_dim, shape.head_dim);
            }
            let of_all = loader.rows(&format!("{stem}.weight")) == Some(all);
            loader.optional_norm(&stem, norm, if of_all { all } else { shape.head_dim })
        };
        Ok(AttentionWeights {
            q,
            k,
            v,
            output: loader.linear(&format!("blk.{n}.attn_output"), d, shape.output_cols())?,
            q_norm: head_norm("q", shape.q_dim())?,
            k_norm: if shape.kv_from.is_none() { head_norm("k", k_dim)? } else { None },
            sinks: loader.optional_vector(&format!("blk.{n}.attn_sinks.weight"), shape.n_head)?,
            latent: None,
            gate: match shape.gate_rows {
                0 => None,
                rows => Some(loader.linear(&format!("blk.{n}.attn_gate"), rows, d)?),
            },
        })
    }
}

/// Attention of a layer, bound to a step.
#[derive(Debug, Clone, Copy)]
pub struct BoundAttention<'m> {
    /// Index of the layer.
    pub layer: usize,
    /// Input.
    pub from: Register,
    /// Sizes.
    pub config: &'m AttentionConfig,
    /// Weights.
    pub weights: &'m AttentionWeights,
    /// Sizes and weights of the latent, in latent attention.
    pub latent: Option<BoundLatent<'m>>,
    /// Norms of the layer. Attention uses the norm of all heads' outputs.
    pub norms: LayerNorms<'m>,
}

impl<'m> BoundAttention<'m> {
    /// Binds the attention of `layer`. `None` for a layer without attention, and if only one of
    /// `config` and `weights` has a latent.
    pub(crate) fn new(
        layer: usize,
        from: Register,
        config: Option<&'m AttentionConfig>,
        weights: Option<&'m AttentionWeights>,
        norms: LayerNorms<'m>,
    ) -> Option<Self> {
        let (config, weights) = config.zip(weights)?;
        let latent = match (&config.latent, weights.latent.as_deref()) {
            (Some(config), Some(weights)) => Some(BoundLatent { config, weights }),
            (None, None) => None,
            _ => return None,
        };
        Some(BoundAttention { layer, from, config, weights, latent, norms })
    }
}
