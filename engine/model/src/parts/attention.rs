//! Attention of a layer: sizes, weights, and both bound to a step.

use super::{BoundLatent, LatentConfig, LatentWeights, LayerNorms, Linear, Norm, NormKind};
use crate::{KeyBias, Register, load::LayerTensors};
use thermocline_base::error::Result;

/// Attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Elements of a query or key head.
    pub head_dim: usize,
    /// Elements of a value head, those of a key but in few models (MiMo 2).
    pub value_dim: usize,
    /// Factor on values.
    pub value_scale: f32,
    /// A query sees itself and the `window - 1` keys before it; `None`: all of them.
    pub window: Option<usize>,
    /// True if the window does not slide: it begins at multiples of its length, and a query sees itself and the keys from there
    /// on (Llama 4).
    pub chunked: bool,
    /// Table in [`ModelConfig::ropes`](crate::ModelConfig::ropes) by which queries and keys are rotated; `None`: they are not.
    pub rope: Option<usize>,
    /// Factor on query-key products (usually `1/sqrt(head_dim)`).
    pub scale: f32,
    /// Growth of queries with their position, latent attention's as well.
    pub query_scale: Option<QueryScale>,
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
    /// Rows of a gate matrix of its own: one per head or per element, by a function of which outputs of heads are multiplied; 0
    /// without.
    pub gate_rows: usize,
    /// That function.
    pub head_gate: HeadGate,
    /// Biases of scores by the position of their key, in place of rotations (ALiBi).
    pub key_bias: Option<KeyBias>,
    /// True if norms of query and key heads come behind the rotation rather than before it (HunYuan). Rotations keep lengths.
    pub norm_after_rope: bool,
}

/// Function of what a gate matrix of attention's own yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadGate {
    /// `ln(1 + e^x)` (Laguna).
    Softplus,
    /// `1 / (1 + e^-x)` (Muse Glimmer).
    Sigmoid,
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

    /// Elements of the outputs of all heads together: columns of the output matrix.
    pub fn output_cols(&self) -> usize {
        self.n_head * self.latent.map_or(self.value_dim, |latent| latent.v_dim)
    }

    /// Heads whose values are cached beside the keys: none where keys are their own values.
    pub fn value_heads(&self) -> usize {
        if self.latent.is_some() { 0 } else { self.n_kv_head }
    }

    /// Bytes of the keys and values that a token caches, `row_bytes` being those of a row of so many elements.
    pub fn cached_bytes(&self, row_bytes: impl Fn(usize) -> usize) -> u64 {
        (self.n_kv_head * row_bytes(self.head_dim) + self.value_heads() * row_bytes(self.value_dim)) as u64
    }

    /// Rows of the query matrix.
    pub fn q_rows(&self) -> usize {
        if let Some(latent) = self.latent {
            return self.n_head * (latent.nope_dim + self.latent_rope_dim());
        }
        if self.gated { 2 * self.q_dim() } else { self.q_dim() }
    }

    /// Elements of all key heads together.
    pub fn k_dim(&self) -> usize {
        self.n_kv_head * self.head_dim
    }

    /// Elements of all value heads together.
    pub fn v_dim(&self) -> usize {
        self.n_kv_head * self.value_dim
    }

    /// Elements that are appended to its keys by a token: none where they are another layer's.
    pub fn own_k_dim(&self) -> usize {
        if self.kv_from.is_some() { 0 } else { self.k_dim() }
    }

    /// Elements that are appended to its values by a token, likewise.
    pub fn own_v_dim(&self) -> usize {
        if self.kv_from.is_some() { 0 } else { self.v_dim() }
    }
}

/// Growth of queries with their position `p`, by which attention stays sharp in long contexts (Llama 4, Ministral 3, Mistral 4):
/// `q *= 1 + beta * ln(1 + floor((p + offset) / length))`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScale {
    /// Weight of the logarithm.
    pub beta: f32,
    /// Positions per step, at least 1: the length the model was trained with.
    pub length: usize,
    /// Added to positions: 1 where the first is counted as 1 (Llama 4).
    pub offset: usize,
}

impl QueryScale {
    /// Factor of the query at `position`.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.beta * ((1 + (position + self.offset) / self.length) as f32).ln()
    }
}

/// Attention weights of one layer. `d` is the width of the residual stream, heads of queries and keys are `head_dim` wide.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// `[n_head * head_dim, d]`; twice the rows if heads are gated.
    pub q: Linear,
    /// `[n_kv_head * head_dim, d]`; absent where keys are another layer's.
    pub k: Option<Linear>,
    /// `[n_kv_head * value_dim, d]`; absent where values are what `k` yields, before norm and rotation, or another layer's.
    pub v: Option<Linear>,
    /// `[d, n_head * value_dim]`
    pub output: Linear,
    /// Norm of queries before rope: of each head, `[head_dim]`, or of all heads together, `[n_head * head_dim]`. A layer norm is of each
    /// head, whose own weights these are then.
    pub q_norm: Option<Norm>,
    /// Norm of keys before rope: of each head, `[head_dim]`, or of all heads together, `[n_kv_head * head_dim]`.
    pub k_norm: Option<Norm>,
    /// Per query head the score of a key without a value, `[n_head]` (gpt-oss).
    pub sinks: Option<Vec<f32>>,
    /// The rest of latent attention: `q` is `[n_head * (nope_dim + rope), d or q_rank]`, `k` is `[rank + rope, d]`, `output` is
    /// `[d, n_head * v_dim]`.
    pub latent: Option<Box<LatentWeights>>,
    /// Gate of the heads' outputs, `[n_head, d]` or `[n_head * value_dim, d]`.
    pub gate: Option<Linear>,
}

impl AttentionWeights {
    /// Its matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        let behind = self.latent.iter().flat_map(|latent| {
            let q = latent.low_q.as_ref().map(|_| &self.q);
            q.into_iter().chain(&latent.keys).chain(&latent.values)
        });
        self.inputs().chain(&self.gate).chain(behind).chain([&self.output])
    }

    /// The matrices that read its input.
    pub fn inputs(&self) -> impl Iterator<Item = &Linear> {
        let low = self.latent.as_ref().and_then(|latent| latent.low_q.as_ref()).map(|(low, _)| low);
        [low.unwrap_or(&self.q)].into_iter().chain(&self.k).chain(&self.v)
    }

    /// Attention of layer `n` in a file, whether q, k and v are tensors of their own or one `attn_qkv` (all q, then k, then v).
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
        // Of each head, or of all together: the length tells.
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

/// The attention of a layer.
#[derive(Debug, Clone, Copy)]
pub struct BoundAttention<'m> {
    /// Number of the layer.
    pub layer: usize,
    /// Input.
    pub from: Register,
    /// Sizes.
    pub config: &'m AttentionConfig,
    /// Weights.
    pub weights: &'m AttentionWeights,
    /// The rest of latent attention.
    pub latent: Option<BoundLatent<'m>>,
    /// Norms of the layer, of which attention has that of all heads' outputs.
    pub norms: LayerNorms<'m>,
}

impl<'m> BoundAttention<'m> {
    /// The attention of `layer`; `None` for a layer without one, or with half of a latent one.
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
