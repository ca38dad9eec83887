//! The configuration every architecture has in common: sizes, positions, windows and experts, checked against each other.

use super::{Loader, MAX_EXPERTS, MAX_HEADS, MAX_SIZE, Sizes, metadata::integers};
use crate::{
    error::{Error, Location, Result},
    format::{Array, Container, Value},
    model::{Activation, Experts, LayerConfig, ModelConfig, NormKind, Position, Rope, RopeOrder, RopeScaling, Step},
};

impl Loader<'_> {
    /// The sizes every architecture has, checked against each other and against the embedding.
    pub(in crate::model) fn sizes(&self) -> Result<Sizes> {
        let d_model = self.required_size("embedding_length", 1..=MAX_SIZE)?;
        // Every layer has tensors of its own, so a believable count is bounded by the file.
        let n_layer = self.required_size("block_count", 1..=self.checkpoint.tensors().len().max(1))?;
        let n_head = self.required_size("attention.head_count", 1..=MAX_HEADS)?;
        let n_kv_head = self.size("attention.head_count_kv", 1..=n_head)?.unwrap_or(n_head);
        if !n_head.is_multiple_of(n_kv_head) {
            let expected = format!("a divisor of head_count {n_head}");
            return Err(self.key_error("attention.head_count_kv", expected, n_kv_head));
        }
        let head_dim = match self.size("attention.key_length", 1..=MAX_HEADS)? {
            Some(head_dim) => head_dim,
            None if d_model.is_multiple_of(n_head) => d_model / n_head,
            None => {
                let expected = format!("a divisor of embedding_length {d_model}, or a key_length");
                return Err(self.key_error("attention.head_count", expected, n_head));
            }
        };
        if let Some(value_length) = self.size("attention.value_length", 1..=MAX_HEADS)?
            && value_length != head_dim
        {
            let expected = format!("the length of a key, {head_dim}");
            return Err(self.key_error("attention.value_length", expected, value_length));
        }
        let n_ff = self.size("feed_forward_length", 0..=MAX_SIZE)?.unwrap_or(0);
        let context_length = self.required_size("context_length", 1..=MAX_SIZE)?;
        let embedding = self.tensor("token_embd.weight", "the embedding, [n_vocab, d_model]")?;
        let n_vocab = embedding.rows();
        if n_vocab == 0 || n_vocab > MAX_SIZE {
            return Err(self.tensor_error("token_embd.weight", "at least one row", format!("{:?}", embedding.shape)));
        }
        self.check_vocabulary(n_vocab)?;
        Ok(Sizes { d_model, n_layer, n_head, n_kv_head, head_dim, n_ff, n_vocab, context_length })
    }

    /// A GGUF vocabulary has one token per row of the embedding. A `tokenizer.json` may have fewer, rows being padded,
    /// but `config.json` counts them.
    fn check_vocabulary(&self, n_vocab: usize) -> Result<()> {
        if self.checkpoint.container == Container::HuggingFace {
            return match self.size("vocab_size", 1..=MAX_SIZE)? {
                Some(size) if size != n_vocab => {
                    Err(self.key_error("vocab_size", format!("{n_vocab}, the rows of the embedding"), size))
                }
                _ => Ok(()),
            };
        }
        let key = "tokenizer.ggml.tokens";
        match self.metadata().array(key)? {
            Some(Array::String(tokens)) if tokens.len() != n_vocab => Err(Error::malformed(
                &self.checkpoint.path,
                Location::Key(key.to_owned()),
                format!("{n_vocab} tokens, one per row of token_embd.weight"),
                tokens.len(),
            )),
            _ => Ok(()),
        }
    }

    /// A configuration with the defaults of the llama family; a family changes what differs.
    pub(in crate::model) fn base_config(&self, sizes: &Sizes, norm: NormKind, order: RopeOrder) -> Result<ModelConfig> {
        let norm_eps = self.norm_eps(match norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        })?;
        let rope_base = self.positive("rope.freq_base")?.unwrap_or(10000.0);
        let layer = LayerConfig { window: None, rope_base, rope_scaled: true, rotated: true };
        let name = match self.metadata().str("general.name")? {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => self.checkpoint.path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        let attention_scale = match self.switchable("attention.scale")? {
            Some(scale) => scale,
            None => 1.0 / (sizes.head_dim as f32).sqrt(),
        };
        Ok(ModelConfig {
            architecture: self.arch.to_owned(),
            name,
            d_model: sizes.d_model,
            n_head: sizes.n_head,
            n_kv_head: sizes.n_kv_head,
            head_dim: sizes.head_dim,
            n_ff: sizes.n_ff,
            n_vocab: sizes.n_vocab,
            context_length: sizes.context_length,
            norm,
            norm_eps,
            position: Position::Rope(self.rope(sizes, order)?),
            activation: Activation::Silu,
            experts: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            attention_scale,
            query_scale: None,
            attention_softcap: None,
            final_softcap: None,
            layers: vec![layer; sizes.n_layer],
            steps: Step::sequential(),
        })
    }

    /// The activation the caller asked for, else the metadata's, else the family's `default`.
    pub(in crate::model) fn activation(&self, default: Activation) -> Result<Activation> {
        match (self.options.activation, self.text("hidden_activation")?) {
            (Some(activation), _) => Ok(activation),
            (None, Some(name)) => name.parse(),
            (None, None) => Ok(default),
        }
    }

    fn rope(&self, sizes: &Sizes, order: RopeOrder) -> Result<Rope> {
        let dims = self.size("rope.dimension_count", 2..=sizes.head_dim)?.unwrap_or(sizes.head_dim);
        if !dims.is_multiple_of(2) {
            return Err(self.key_error("rope.dimension_count", "an even number", dims));
        }
        let original_context =
            self.size("rope.scaling.original_context_length", 1..=MAX_SIZE)?.unwrap_or(sizes.context_length);
        let attn_factor = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let factors = |name: &str| -> Result<Option<Vec<f32>>> {
            let Some(values) = self.optional_vector(name, dims / 2)? else { return Ok(None) };
            match values.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
                Some(value) => Err(self.tensor_error(name, "finite factors above 0", value)),
                None => Ok(Some(values)),
            }
        };
        let scaling = if let Some(short) = factors("rope_freqs.weight")? {
            RopeScaling::Factors { short, long: None, original_context, attention_factor: attn_factor }
        } else if let Some(long) = factors("rope_factors_long.weight")? {
            let name = "rope_factors_short.weight";
            let short = factors(name)?.ok_or_else(|| self.missing_tensor(name, "as many factors as the long ones"))?;
            RopeScaling::Factors { short, long: Some(long), original_context, attention_factor: attn_factor }
        } else {
            let factor = match self.switchable("rope.scaling.factor")? {
                None => self.switchable("rope.scale_linear")?,
                factor => factor,
            };
            match (self.text("rope.scaling.type")?.unwrap_or("linear"), factor) {
                ("none", _) | ("linear", None) => RopeScaling::None,
                ("linear", Some(1.0)) => RopeScaling::None,
                ("linear", Some(factor)) => RopeScaling::Linear { factor },
                ("yarn", factor) => {
                    let factor = factor.unwrap_or(1.0);
                    RopeScaling::Yarn {
                        factor,
                        original_context,
                        attention_factor: attn_factor * yarn_magnitude(factor, 1.0),
                        beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                        beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    }
                }
                // Files of Phi-3's short-context models say so without having factors.
                ("longrope", _) if sizes.context_length <= original_context => RopeScaling::None,
                ("longrope", _) => {
                    return Err(self.missing_tensor("rope_factors_long.weight", "the factors of longrope scaling"));
                }
                (other, _) => {
                    return Err(Error::Unsupported {
                        what: "rope scaling",
                        got: other.to_owned(),
                        supported: "none, linear, yarn, longrope, or rope_freqs.weight".to_owned(),
                    });
                }
            }
        };
        Ok(Rope { dims, order, scaling })
    }

    /// Sets the sliding window of the layers that have one. `pattern` is the default of
    /// `attention.sliding_window_pattern`: layer `i` slides unless `i % pattern == pattern - 1`; with 0 all slide.
    pub(in crate::model) fn apply_window(
        &self,
        config: &mut ModelConfig,
        default: Option<usize>,
        pattern: usize,
    ) -> Result<()> {
        let window = self.size("attention.sliding_window", 0..=usize::MAX)?.or(default).filter(|&window| window > 0);
        let Some(window) = window else { return Ok(()) };
        let key = "attention.sliding_window_pattern";
        let n_layer = config.n_layer();
        let slides: Vec<bool> = match self.layer_flags(key, n_layer)? {
            Some(flags) => flags,
            None => {
                let pattern = self.size(key, 0..=MAX_SIZE)?.unwrap_or(pattern);
                (0..n_layer).map(|layer| pattern == 0 || layer % pattern != pattern - 1).collect()
            }
        };
        for (layer, _) in config.layers.iter_mut().zip(slides).filter(|(_, slides)| *slides) {
            layer.window = Some(window);
        }
        Ok(())
    }

    /// Sets the layers that are rotated: those of `rope.layer_pattern`, a key of this engine's own, or by default all but every
    /// `interval`th, as architectures have it whose files do not say.
    pub(in crate::model) fn apply_rope_pattern(&self, config: &mut ModelConfig, interval: usize) -> Result<()> {
        let flags = self.layer_flags("rope.layer_pattern", config.n_layer())?;
        for (n, layer) in config.layers.iter_mut().enumerate() {
            layer.rotated = flags.as_ref().map_or((n + 1) % interval != 0, |flags| flags[n]);
        }
        Ok(())
    }

    /// An array of one flag per layer under `suffix`; `None` if there is no array.
    fn layer_flags(&self, suffix: &str, n_layer: usize) -> Result<Option<Vec<bool>>> {
        let Some(Value::Array(array)) = self.metadata().get(&self.key(suffix)) else { return Ok(None) };
        let flags: Option<Vec<bool>> = match array {
            Array::Bool(flags) => Some(flags.clone()),
            other => integers(other).map(|numbers| numbers.iter().map(|&number| number != 0).collect()),
        };
        let right = flags.filter(|flags| flags.len() == n_layer);
        let expected = || format!("{n_layer} flags, one per layer");
        right.map(Some).ok_or_else(|| self.key_error(suffix, expected(), "another array"))
    }

    /// The MoE sizes that the metadata describes; `None` without experts.
    pub(in crate::model) fn experts(
        &self,
        renormalise: bool,
        default_n_ff: impl FnOnce(usize) -> usize,
    ) -> Result<Option<Experts>> {
        let count = self.size("expert_count", 0..=MAX_EXPERTS)?.unwrap_or(0);
        if count == 0 {
            return Ok(None);
        }
        let used = self.required_size("expert_used_count", 1..=count)?;
        let n_ff = match self.size("expert_feed_forward_length", 1..=MAX_SIZE)? {
            Some(n_ff) => n_ff,
            None => default_n_ff(used),
        };
        if n_ff == 0 {
            return Err(self.metadata().missing(&self.key("expert_feed_forward_length"), "the width of an expert"));
        }
        let renormalise = self.flag("expert_weights_norm")?.unwrap_or(renormalise);
        Ok(Some(Experts { count, used, renormalise, n_ff }))
    }
}

/// The magnitude YaRN gives cos and sin when a file names none (equation 22 of the paper, with `scale` 1).
pub(in crate::model) fn yarn_magnitude(factor: f32, scale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}
