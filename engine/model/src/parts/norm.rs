//! Norms of registers, and of vectors within a part.

/// Kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * w`
    Rms,
    /// `(x - mean) / sqrt(var + eps) * w + b`
    Layer,
}

/// Weights of a norm.
#[derive(Debug, Clone)]
pub struct Norm {
    /// `[n]`
    pub weight: Vec<f32>,
    /// `[n]`, layer norm only.
    pub bias: Option<Vec<f32>>,
    /// Epsilon under the root, if it differs from the model's
    /// ([`ModelConfig::norm_eps`](crate::ModelConfig::norm_eps)).
    pub own_eps: Option<f32>,
}

impl Norm {
    /// Returns the epsilon under the root, in a model with the epsilon `of_model`.
    pub fn eps(&self, of_model: f32) -> f32 {
        self.own_eps.unwrap_or(of_model)
    }
}

/// Place of a norm in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormSlot {
    /// Norm without weights, of embeddings before the first layer's attention (Muse Glimmer).
    Embedding,
    /// `blk.N.attn_norm`
    Attention,
    /// `blk.N.post_attention_norm` (Gemma, OLMo 2)
    PostAttention,
    /// `blk.N.ffn_norm`. In Falcon 40B `attn_norm_2` is attention's norm and `attn_norm` the FFN's.
    /// Seed-OSS names it `post_attention_norm`.
    Ffn,
    /// `blk.N.post_ffw_norm` (Gemma, OLMo 2)
    PostFfn,
    /// `blk.N.post_ffw_norm_1`, of the dense FFN beside experts (Gemma 4)
    PostDense,
    /// `blk.N.pre_ffw_norm_2`, before the experts beside a dense FFN (Gemma 4)
    Experts,
    /// `blk.N.post_ffw_norm_2`, of the experts beside a dense FFN (Gemma 4)
    PostExperts,
    /// `blk.N.post_norm`, of the product with the layer's own input (Gemma 3n and 4)
    PostPerLayer,
    /// `blk.N.attn_sub_norm`, of all heads' outputs before attention's output matrix,
    /// `[n_head * head_dim]` (BitNet)
    Heads,
    /// `blk.N.ffn_sub_norm`, of the hidden values before the down projection, `[n_ff]` (BitNet)
    Hidden,
}

impl NormSlot {
    /// True if the norm is of a vector within a part. The part then applies it, and no step of the
    /// layer's program names it.
    pub fn is_within_part(self) -> bool {
        matches!(self, NormSlot::Heads | NormSlot::Hidden)
    }
}

/// Norms of a layer. Each step of a part holds them, and the part applies the norms of its own
/// vectors.
#[derive(Debug, Clone, Copy)]
pub struct LayerNorms<'m>(&'m [(NormSlot, Norm)]);

impl<'m> LayerNorms<'m> {
    /// Creates the norms from those of a layer's weights.
    pub(crate) fn new(norms: &'m [(NormSlot, Norm)]) -> Self {
        LayerNorms(norms)
    }

    /// Returns the norm in `slot`, if the layer has it.
    pub fn get(self, slot: NormSlot) -> Option<&'m Norm> {
        self.0.iter().find(|(at, _)| *at == slot).map(|(_, norm)| norm)
    }

    /// True if a vector within a part has a norm.
    pub fn any_within_part(self) -> bool {
        self.0.iter().any(|(slot, _)| slot.is_within_part())
    }
}
