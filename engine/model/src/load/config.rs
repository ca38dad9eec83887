//! The configuration that all architectures have in common: sizes, positions, windows and experts,
//! checked against each other.

use std::sync::Arc;

use super::{Loader, MAX_EXPERTS, MAX_HEADS, MAX_SIZE, Sizes};
use crate::{
    Activation, AttentionConfig, ExpertGroups, Experts, HeadPositions, LayerConfig, ModelConfig, NormKind, Pooling,
    Position, QueryScale, RANK, Rope, RopeOrder, Router, RouterScore, ScoreScaling, Step, ValueScaling,
};
use thermocline_base::error::{Error, Location, Result};
use thermocline_cpu::ops::{AttentionWindow, HeadSizes};
use thermocline_formats::format::{Array, Container};

impl Loader<'_> {
    /// Returns the sizes that every architecture has, checked against each other and against the
    /// embedding.
    pub fn sizes(&self) -> Result<Sizes> {
        let d_model = self.required_size("embedding_length", 1..=MAX_SIZE)?;
        let n_layer = self.layer_counts()?.n_layer;
        let heads = self.heads(n_layer)?;
        let n_head = heads.iter().map(|heads| heads.0).max().unwrap_or(1);
        let head_dim = match self.size("attention.key_length", 1..=MAX_HEADS)? {
            Some(head_dim) => head_dim,
            None if d_model.is_multiple_of(n_head) => d_model / n_head,
            None => {
                let expected = format!("a divisor of embedding_length {d_model}, or a key_length in the file");
                return Err(self.key_error("attention.head_count", expected, n_head));
            }
        };
        let value_dim = self.size("attention.value_length", 1..=MAX_HEADS)?.unwrap_or(head_dim);
        let n_ff = self.widths(n_layer)?.into_iter().max().unwrap_or(0);
        let context_length = self.required_size("context_length", 1..=MAX_SIZE)?;
        let embedding = "token_embd.weight";
        let n_vocab = self.rows(embedding);
        let n_vocab =
            n_vocab.ok_or_else(|| self.missing_tensor(embedding, "the embedding with the shape [n_vocab, d_model]"))?;
        if n_vocab == 0 || n_vocab > MAX_SIZE {
            return Err(self.tensor_error(embedding, "at least one row", format!("{n_vocab} rows")));
        }
        self.check_vocabulary(n_vocab)?;
        Ok(Sizes { d_model, n_layer, n_head, head_dim, value_dim, n_ff, n_vocab, context_length })
    }

    /// Returns the query heads and the key/value heads of each layer. Either may be 0 in layers
    /// without attention.
    fn heads(&self, n_layer: usize) -> Result<Vec<(usize, usize)>> {
        let (key, kv_key) = ("attention.head_count", "attention.head_count_kv");
        let heads = self.per_layer(key, 1..=MAX_HEADS, n_layer)?;
        let heads =
            heads.ok_or_else(|| self.metadata().missing(&self.key(key), &format!("a number from 1 to {MAX_HEADS}")))?;
        let most = heads.iter().copied().max().unwrap_or(1);
        let kv_heads = self.per_layer(kv_key, 1..=most, n_layer)?.unwrap_or_else(|| heads.clone());
        let heads: Vec<(usize, usize)> = heads.into_iter().zip(kv_heads).collect();
        for (heads, kv_heads) in heads.iter().filter(|(_, kv_heads)| *kv_heads > 0) {
            if !heads.is_multiple_of(*kv_heads) {
                return Err(self.key_error(kv_key, format!("a divisor of head_count {heads}"), kv_heads));
            }
        }
        Ok(heads)
    }

    /// Returns the number of neurons of each layer's dense FFN.
    fn widths(&self, n_layer: usize) -> Result<Vec<usize>> {
        let widths = self.per_layer("feed_forward_length", 0..=MAX_SIZE, n_layer)?;
        Ok(widths.unwrap_or_else(|| vec![0; n_layer]))
    }

    /// Checks the size of the vocabulary. A GGUF vocabulary has one token per row of the embedding.
    /// A `tokenizer.json` may have fewer tokens, because rows are padded, but `config.json` counts
    /// the rows.
    fn check_vocabulary(&self, n_vocab: usize) -> Result<()> {
        if self.checkpoint.container == Container::HuggingFace {
            return match self.size("vocab_size", 1..=MAX_SIZE)? {
                Some(size) if size != n_vocab => {
                    Err(self.key_error("vocab_size", format!("{n_vocab}, the number of rows of the embedding"), size))
                }
                _ => Ok(()),
            };
        }
        let key = "tokenizer.ggml.tokens";
        let tokens = match self.metadata().array(key)? {
            Some(Array::String(tokens)) => tokens.len(),
            Some(Array::Bytes(tokens)) => tokens.len(),
            _ => return Ok(()),
        };
        if tokens == n_vocab {
            return Ok(());
        }
        let expected = format!("{n_vocab} tokens, one per row of token_embd.weight");
        Err(Error::malformed(&self.checkpoint.path, Location::Key(key.to_owned()), expected, tokens))
    }

    /// Returns a configuration with the defaults of the llama family, which a family then changes.
    /// Values are as long as keys.
    pub fn base_config(&self, sizes: &Sizes, norm: NormKind, order: RopeOrder) -> Result<ModelConfig> {
        let Sizes { head_dim, value_dim, .. } = *sizes;
        // Latent attention has other lengths, and its own keys for them.
        if value_dim != head_dim && !self.has_key("attention.kv_lora_rank") {
            let expected = format!("the length of a key, {head_dim}");
            return Err(self.key_error("attention.value_length", expected, value_dim));
        }
        self.config_with(&Sizes { value_dim: head_dim, ..*sizes }, norm, self.rope(sizes, order)?)
    }

    /// Returns a configuration with the defaults of the llama family, the rotations `rope`, and a
    /// separate length of values.
    pub fn config_with(&self, sizes: &Sizes, norm: NormKind, rope: Rope) -> Result<ModelConfig> {
        let norm_eps = self.norm_eps(match norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            // Files of Phi-3.5-MoE have the epsilon under the RMS norm's key.
            NormKind::Layer
                if !self.has_key("attention.layer_norm_epsilon")
                    && self.has_key("attention.layer_norm_rms_epsilon") =>
            {
                "attention.layer_norm_rms_epsilon"
            }
            NormKind::Layer => "attention.layer_norm_epsilon",
        })?;
        let name = match self.metadata().str("general.name")? {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => self.checkpoint.path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        let Sizes { head_dim, value_dim, .. } = *sizes;
        let scale = self.switchable("attention.scale")?.unwrap_or(1.0 / (head_dim as f32).sqrt());
        let query_scale = self.query_scale(sizes.context_length)?;
        let attention = |(n_head, n_kv_head): (usize, usize)| {
            let there = n_head > 0 && n_kv_head > 0;
            there.then_some(AttentionConfig {
                heads: HeadSizes { n_head, n_kv_head, head_dim, value_dim },
                positions: HeadPositions { rope: Some(0), ..HeadPositions::default() },
                window: None,
                whole_pictures: false,
                scores: ScoreScaling { scale, softcap: None, query_scale },
                values: ValueScaling { scale: 1.0, normed: false },
                gate: None,
                kv_from: None,
                latent: None,
            })
        };
        let steps: Arc<[Step]> = Step::sequential().into();
        let layer = |(heads, n_ff)| LayerConfig {
            steps: Arc::clone(&steps),
            attention: attention(heads),
            recurrent: None,
            n_ff,
        };
        let layers = self.heads(sizes.n_layer)?.into_iter().zip(self.widths(sizes.n_layer)?).map(layer).collect();
        Ok(ModelConfig {
            architecture: self.arch.to_owned(),
            name,
            d_model: sizes.d_model,
            n_ff: sizes.n_ff,
            n_vocab: sizes.n_vocab,
            context_length: sizes.context_length,
            reads_other_keys: false,
            dense_context: self.size("attention.dense_length", 1..=MAX_SIZE)?,
            norm,
            norm_eps,
            position: Position::Rotary,
            ropes: vec![rope],
            activation: self.activation(Activation::Silu)?,
            experts: None,
            per_layer_input: None,
            altup: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            final_softcap: None,
            pooling: None,
            layers,
        })
    }

    /// Returns how hidden states become an embedding or a score, if the file says so. A classifier
    /// reads the mean in ModernBERT, the last token in models that read earlier tokens only, and
    /// otherwise the first token.
    pub fn pooling(&self, encoder: bool) -> Result<Option<Pooling>> {
        let key = "pooling_type";
        if let Some(name) = self.text("classifier_pooling")? {
            let known = || self.key_error("classifier_pooling", "mean, cls or last", name);
            return Pooling::of_name(name).ok_or_else(known).map(Some);
        }
        Ok(match self.size(key, 0..=RANK as usize)? {
            Some(1) => Some(Pooling::Mean),
            Some(2) => Some(Pooling::First),
            Some(3) => Some(Pooling::Last),
            Some(_) if self.has("cls.output.weight") => Some(match self.arch {
                "modernbert" => Pooling::Mean,
                _ if encoder => Pooling::First,
                _ => Pooling::Last,
            }),
            _ => None,
        })
    }

    /// Returns the growth of queries with their position, if the file names its weight. Its length
    /// is the one that the file names, or else the context length of the training, before it was
    /// stretched to `context`.
    fn query_scale(&self, context: usize) -> Result<Option<QueryScale>> {
        let Some(beta) = self.switchable("attention.temperature_scale")? else { return Ok(None) };
        let named = self.size("attention.temperature_length", 0..=MAX_SIZE)?.filter(|length| *length > 0);
        let length = match named {
            None => self.size("rope.scaling.original_context_length", 1..=MAX_SIZE)?.unwrap_or(context),
            Some(length) => length,
        };
        Ok(Some(QueryScale { beta, length, offset: 0 }))
    }

    /// Returns the caller's activation, or else the metadata's, or else the family's `default`.
    pub fn activation(&self, default: Activation) -> Result<Activation> {
        match (self.options.activation, self.text("hidden_activation")?) {
            (Some(activation), _) => Ok(activation),
            (None, Some(name)) => name.parse(),
            (None, None) => Ok(default),
        }
    }

    /// Sets the sliding window of the layers with a window. `pattern` is the default of
    /// `attention.sliding_window_pattern`. Layer `i` has the window unless
    /// `i % pattern == pattern - 1`. With 0, all layers have it.
    pub fn apply_window(&self, config: &mut ModelConfig, default: Option<usize>, pattern: usize) -> Result<()> {
        let window = self.size("attention.sliding_window", 0..=usize::MAX)?.or(default).filter(|&window| window > 0);
        let Some(window) = window else { return Ok(()) };
        let key = "attention.sliding_window_pattern";
        let n_layer = config.n_layer();
        let slides = match self.layer_flags(key, n_layer)? {
            Some(slides) => slides,
            None => {
                let pattern = self.size(key, 0..=MAX_SIZE)?.unwrap_or(pattern);
                (0..n_layer).map(|layer| pattern == 0 || layer % pattern != pattern - 1).collect()
            }
        };
        for (layer, _) in config.layers.iter_mut().zip(slides).filter(|(_, slides)| *slides) {
            if let Some(attention) = &mut layer.attention {
                attention.window = Some(AttentionWindow::sliding(window));
            }
        }
        Ok(())
    }

    /// Removes the rotation from layers without one. `rope.layer_pattern`, this engine's own key,
    /// names the rotated layers. Without it, every `interval`th layer has no rotation, for
    /// architectures whose files do not say.
    pub fn apply_rope_pattern(&self, config: &mut ModelConfig, interval: usize) -> Result<()> {
        let flags = self.layer_flags("rope.layer_pattern", config.n_layer())?;
        for (n, layer) in config.layers.iter_mut().enumerate() {
            let rotated = flags.as_ref().map_or((n + 1) % interval != 0, |flags| flags[n]);
            if let Some(attention) = &mut layer.attention {
                attention.positions.rope = attention.positions.rope.filter(|_| rotated);
            }
        }
        Ok(())
    }

    /// Reads the MoE sizes of the metadata, with the family's `router` as default; `None` without
    /// experts.
    pub fn experts(&self, router: Router, default_n_ff: impl FnOnce(usize) -> usize) -> Result<Option<Experts>> {
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
        Ok(Some(Experts { count, used, router: self.router(router, count, used)?, n_ff }))
    }

    /// Reads the MoE sizes, for families whose models all have experts.
    pub fn required_experts(&self, router: Router, default_n_ff: impl FnOnce(usize) -> usize) -> Result<Experts> {
        self.experts(router, default_n_ff)?.ok_or_else(|| self.key_error("expert_count", "at least one expert", 0))
    }

    fn router(&self, default: Router, count: usize, used: usize) -> Result<Router> {
        let score = match self.size("expert_gating_func", 0..=usize::MAX)? {
            None | Some(0) => default.score,
            Some(1) => RouterScore::Softmax,
            Some(2) => RouterScore::Sigmoid,
            Some(3) => RouterScore::SoftmaxOfChosen,
            Some(other) => {
                let supported = "1 (softmax), 2 (sigmoid), 3 (softmax of the chosen experts)".to_owned();
                return Err(Error::unsupported("expert_gating_func", other, supported));
            }
        };
        let groups = match self.size("expert_group_count", 0..=count)?.unwrap_or(0) {
            0 | 1 => None,
            groups if count.is_multiple_of(groups) => {
                let few = used.div_ceil(count / groups);
                let in_use = self.required_size("expert_group_used_count", few..=groups)?;
                let best = default.groups.map_or(2, |groups| groups.best).min(count / groups);
                (in_use < groups).then_some(ExpertGroups { count: groups, used: in_use, best })
            }
            groups => {
                let expected = format!("a divisor of expert_count {count}");
                return Err(self.key_error("expert_group_count", expected, groups));
            }
        };
        let renormalise = self.flag("expert_weights_norm")?.unwrap_or(default.renormalise);
        let scale = self.switchable("expert_weights_scale")?.unwrap_or(default.scale);
        Ok(Router { score, groups, renormalise, scale, weighs_inputs: default.weighs_inputs })
    }
}
