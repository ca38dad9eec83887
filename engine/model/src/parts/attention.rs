//! Attention of a layer: weights, and the form that a step names.

use super::{AttentionConfig, BoundLatent, LatentWeights, LayerNorms, Linear, Norm, NormKind};
use crate::{Register, load::LayerTensors};
use thermocline_base::error::Result;

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
        let (LayerTensors { loader, n, d_model: d, norm }, heads) = (*at, shape.heads);
        let (q_rows, k_dim, v_dim) = (shape.q_rows(), heads.k_dim(), heads.v_dim());
        let fused = format!("blk.{n}.attn_qkv");
        let (q, k, v) = if loader.has(&format!("{fused}.weight")) {
            let [q, k, v] = Linear::split(loader, &fused, d, [q_rows, k_dim, v_dim])?;
            (q, Some(k), Some(v))
        } else {
            let q = loader.linear(&format!("blk.{n}.attn_q"), q_rows, d)?;
            let own = |which: &str, rows| loader.linear(&format!("blk.{n}.attn_{which}"), rows, d);
            let keys_are_values = shape.values.normed && !loader.has(&format!("blk.{n}.attn_v.weight"));
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
            // With a bias, all heads are normed together (Jina v2).
            if norm == NormKind::Layer && loader.has(&format!("{stem}.bias")) {
                return loader.norm(&stem, norm, all).map(Some);
            }
            if norm == NormKind::Layer {
                return loader.layer_norm_of_heads(&stem, all / heads.head_dim, heads.head_dim);
            }
            let of_all = loader.rows(&format!("{stem}.weight")) == Some(all);
            loader.optional_norm(&stem, norm, if of_all { all } else { heads.head_dim })
        };
        Ok(AttentionWeights {
            q,
            k,
            v,
            output: loader.linear(&format!("blk.{n}.attn_output"), d, shape.output_cols())?,
            q_norm: head_norm("q", heads.q_dim())?,
            k_norm: if shape.kv_from.is_none() { head_norm("k", k_dim)? } else { None },
            sinks: loader.optional_vector(&format!("blk.{n}.attn_sinks.weight"), heads.n_head)?,
            latent: None,
            gate: match shape.gate_rows() {
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
