//! Checked access to a checkpoint: metadata by key suffix, tensors by name and expected shape. Every number is checked
//! against the range the engine can work with, and every tensor against the sizes the metadata promised, before anything
//! is computed or allocated from it.

use std::{cell::RefCell, collections::HashSet, fmt::Display, ops::RangeInclusive};

use super::{
    Activation, Down, Experts, FfnWeights, LayerConfig, Linear, LoadOptions, ModelConfig, Norm, NormKind, Position,
    Predictor, PredictorInput, PredictorKind, Rope, RopeOrder, RopeScaling, Step,
};
use crate::{
    error::{Error, Location, Result},
    format::{Array, Checkpoint, Container, Matrix, Metadata, Tensor, blocks},
};

/// Largest width, head count, context and so on that is believed: every product of two of them fits in 64 bits.
const MAX_SIZE: usize = (1 << 31) - 1;
const MAX_HEADS: usize = 1 << 16;
const MAX_EXPERTS: usize = 1 << 16;

/// A checkpoint seen through the architecture it names.
pub(super) struct Loader<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) arch: &'a str,
    pub(super) options: &'a LoadOptions,
    used: RefCell<HashSet<String>>,
}

/// The sizes every architecture has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) d_model: usize,
    pub(super) n_layer: usize,
    pub(super) n_head: usize,
    pub(super) n_kv_head: usize,
    pub(super) head_dim: usize,
    /// 0 if the file does not say (mixtures).
    pub(super) n_ff: usize,
    pub(super) n_vocab: usize,
    pub(super) context_length: usize,
}

impl<'a> Loader<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, arch: &'a str, options: &'a LoadOptions) -> Self {
        Loader { checkpoint, arch, options, used: RefCell::default() }
    }

    fn metadata(&self) -> &'a Metadata {
        &self.checkpoint.metadata
    }

    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    /// The error for a key whose value cannot be used.
    pub(super) fn key_error(&self, suffix: &str, expected: impl Into<String>, got: impl Display) -> Error {
        Error::malformed(&self.checkpoint.path, Location::Key(self.key(suffix)), expected, got)
    }

    fn tensor_error(&self, name: &str, expected: impl Into<String>, got: impl Display) -> Error {
        Error::malformed(&self.checkpoint.path, Location::Tensor(name.to_owned()), expected, got)
    }

    /// Whether the file came from PowerInfer, whose models all fire with a ReLU and do not say so.
    pub(super) fn is_powerinfer(&self) -> bool {
        matches!(self.checkpoint.container, Container::PowerInfer(_))
            || self.checkpoint.tensor("blk.0.ffn_down_t.weight").is_some()
    }

    // Metadata ------------------------------------------------------------------------------------------------------

    /// Integer under a key that may hold one number or an equal one per layer.
    pub(super) fn size(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let key = self.key(suffix);
        let value = match self.metadata().get(&key) {
            Some(crate::format::Value::Array(array)) => {
                let numbers = integers(array)
                    .ok_or_else(|| self.key_error(suffix, "an unsigned integer or an array of them", "an array"))?;
                let Some(&first) = numbers.first() else {
                    return Err(self.key_error(suffix, "one number per layer", "an empty array"));
                };
                if numbers.iter().any(|&number| number != first) {
                    return Err(Error::Unsupported {
                        what: "model shape",
                        got: format!("{key} differs between layers"),
                        supported: "one value for all layers".to_owned(),
                    });
                }
                Some(usize::try_from(first).unwrap_or(usize::MAX))
            }
            _ => self.metadata().usize(&key)?,
        };
        match value {
            Some(value) if !range.contains(&value) => {
                Err(self.key_error(suffix, format!("a number from {} to {}", range.start(), range.end()), value))
            }
            other => Ok(other),
        }
    }

    /// The same, required.
    pub(super) fn required_size(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.size(suffix, range)?.ok_or_else(|| self.metadata().missing(&self.key(suffix), &expected))
    }

    /// Finite float above zero.
    pub(super) fn positive(&self, suffix: &str) -> Result<Option<f32>> {
        match self.metadata().f32(&self.key(suffix))? {
            Some(value) if value <= 0.0 => Err(self.key_error(suffix, "a float above 0", value)),
            other => Ok(other),
        }
    }

    /// Finite float where absent and 0 both mean "off".
    pub(super) fn switchable(&self, suffix: &str) -> Result<Option<f32>> {
        match self.metadata().f32(&self.key(suffix))? {
            Some(value) if value < 0.0 => Err(self.key_error(suffix, "a float of at least 0", value)),
            other => Ok(other.filter(|&value| value != 0.0)),
        }
    }

    pub(super) fn flag(&self, suffix: &str) -> Result<Option<bool>> {
        self.metadata().bool(&self.key(suffix))
    }

    pub(super) fn text(&self, suffix: &str) -> Result<Option<&'a str>> {
        self.metadata().str(&self.key(suffix))
    }

    fn norm_eps(&self, suffix: &str) -> Result<f32> {
        let key = self.key(suffix);
        let eps = self.metadata().f32(&key)?.ok_or_else(|| self.metadata().missing(&key, "a small float"))?;
        if !(0.0..1.0).contains(&eps) {
            return Err(self.key_error(suffix, "a float from 0 to 1", eps));
        }
        Ok(eps)
    }

    /// The sizes every architecture has, checked against each other and against the embedding.
    pub(super) fn sizes(&self) -> Result<Sizes> {
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
    pub(super) fn base_config(&self, sizes: &Sizes, norm: NormKind, order: RopeOrder) -> Result<ModelConfig> {
        let norm_eps = self.norm_eps(match norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        })?;
        let rope_base = self.positive("rope.freq_base")?.unwrap_or(10000.0);
        let layer = LayerConfig { window: None, rope_base, rope_scaled: true };
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
            attention_scale,
            attention_softcap: None,
            final_softcap: None,
            layers: vec![layer; sizes.n_layer],
            steps: Step::sequential(),
        })
    }

    /// The activation the caller asked for, else the metadata's, else the family's `default`.
    pub(super) fn activation(&self, default: Activation) -> Result<Activation> {
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
                        attention_factor: attn_factor * yarn_magnitude(factor),
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
    pub(super) fn apply_window(&self, config: &mut ModelConfig, default: Option<usize>, pattern: usize) -> Result<()> {
        let window = self.size("attention.sliding_window", 0..=usize::MAX)?.or(default).filter(|&window| window > 0);
        let Some(window) = window else { return Ok(()) };
        let key = "attention.sliding_window_pattern";
        let n_layer = config.n_layer();
        let slides: Vec<bool> = match self.metadata().get(&self.key(key)) {
            Some(crate::format::Value::Array(array)) => {
                let flags = match array {
                    Array::Bool(flags) => Some(flags.clone()),
                    other => integers(other).map(|numbers| numbers.iter().map(|&number| number != 0).collect()),
                };
                flags
                    .filter(|flags| flags.len() == n_layer)
                    .ok_or_else(|| self.key_error(key, format!("{n_layer} flags, one per layer"), "another array"))?
            }
            _ => {
                let pattern = self.size(key, 0..=MAX_SIZE)?.unwrap_or(pattern);
                (0..n_layer).map(|layer| pattern == 0 || layer % pattern != pattern - 1).collect()
            }
        };
        for (layer, _) in config.layers.iter_mut().zip(slides).filter(|(_, slides)| *slides) {
            layer.window = Some(window);
        }
        Ok(())
    }

    /// The mixture of experts the metadata describes; `None` without experts.
    pub(super) fn experts(
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

    // Tensors -------------------------------------------------------------------------------------------------------

    pub(super) fn missing_tensor(&self, name: &str, expected: impl Into<String>) -> Error {
        self.tensor_error(name, expected, "nothing: the tensor is missing")
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a Tensor> {
        let tensor = self.checkpoint.tensor(name)?;
        self.used.borrow_mut().insert(name.to_owned());
        Some(tensor)
    }

    fn tensor(&self, name: &str, expected: &str) -> Result<&'a Tensor> {
        self.find(name).ok_or_else(|| self.missing_tensor(name, expected))
    }

    /// Tensors no role asked for.
    pub(super) fn unused(&self) -> impl Iterator<Item = &'a str> {
        let used = self.used.take();
        self.checkpoint.tensors().iter().map(|tensor| tensor.name.as_str()).filter(move |name| !used.contains(*name))
    }

    fn as_matrix(&self, tensor: &Tensor, shape: &[usize]) -> Result<Matrix> {
        if tensor.shape != shape {
            let expected = format!("shape {shape:?}");
            return Err(self.tensor_error(&tensor.name, expected, format!("{:?}", tensor.shape)));
        }
        Matrix::new(tensor.ty, tensor.rows(), tensor.cols(), tensor.data.clone())
            .ok_or_else(|| self.tensor_error(&tensor.name, "a weight type and whole blocks per row", tensor.ty))
    }

    pub(super) fn optional_matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Matrix>> {
        self.find(name).map(|tensor| self.as_matrix(tensor, &[rows, cols])).transpose()
    }

    pub(super) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.optional_matrix(name, rows, cols)?
            .ok_or_else(|| self.missing_tensor(name, format!("shape {:?}", [rows, cols])))
    }

    /// A tensor of `cols` elements as a matrix of one row, stored with or without its unit dimension.
    pub(super) fn row(&self, tensor: &Tensor, cols: usize) -> Result<Matrix> {
        let flat = Tensor { shape: vec![1, tensor.len()], ..tensor.clone() };
        self.as_matrix(&flat, &[1, cols])
    }

    /// The error if the file does not give the width of the FFN.
    pub(super) fn dense_width(&self, config: &ModelConfig) -> Result<usize> {
        match config.n_ff {
            0 => Err(self.metadata().missing(&self.key("feed_forward_length"), "the width of the FFN")),
            n_ff => Ok(n_ff),
        }
    }

    /// `[count, rows, cols]`, one matrix per expert.
    pub(super) fn stacked(&self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Option<Vec<Matrix>>> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        let all = self.as_matrix(tensor, &[count, rows, cols])?;
        let slice = |at: usize| self.slice(&all, name, at * rows, rows);
        (0..count).map(slice).collect::<Result<_>>().map(Some)
    }

    /// `len` rows of a matrix from row `start`, sharing its data.
    pub(super) fn slice(&self, matrix: &Matrix, name: &str, start: usize, len: usize) -> Result<Matrix> {
        matrix
            .slice_rows(start..start + len)
            .ok_or_else(|| self.tensor_error(name, format!("at least {} rows", start + len), matrix.rows()))
    }

    pub(super) fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        if tensor.shape != [len] {
            return Err(self.tensor_error(name, format!("shape {:?}", [len]), format!("{:?}", tensor.shape)));
        }
        if !tensor.ty.is_weight() || tensor.ty.row_bytes(len) != Some(tensor.data.len()) {
            return Err(self.tensor_error(name, "a weight type and whole blocks", tensor.ty));
        }
        let mut values = vec![0.0; len];
        blocks::dequantise(tensor.ty, &tensor.data, &mut values);
        Ok(Some(values))
    }

    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.optional_vector(name, len)?.ok_or_else(|| self.missing_tensor(name, format!("shape {:?}", [len])))
    }

    /// `{stem}.weight` and, where there is one, `{stem}.bias`.
    pub(super) fn linear(&self, stem: &str, rows: usize, cols: usize) -> Result<Linear> {
        let weight = self.matrix(&format!("{stem}.weight"), rows, cols)?;
        Ok(Linear { weight, bias: self.optional_vector(&format!("{stem}.bias"), rows)? })
    }

    /// The norm `{stem}`; a layer norm's bias may be absent.
    pub(super) fn norm(&self, stem: &str, kind: NormKind, len: usize) -> Result<Norm> {
        let weight = self.vector(&format!("{stem}.weight"), len)?;
        let bias = match kind {
            NormKind::Rms => None,
            NormKind::Layer => self.optional_vector(&format!("{stem}.bias"), len)?,
        };
        Ok(Norm { weight, bias })
    }

    pub(super) fn optional_norm(&self, stem: &str, kind: NormKind, len: usize) -> Result<Option<Norm>> {
        match self.checkpoint.tensor(&format!("{stem}.weight")) {
            Some(_) => self.norm(stem, kind, len).map(Some),
            None => Ok(None),
        }
    }

    /// The down projection of layer `n`, in the orientation the file has.
    pub(super) fn down(&self, n: usize, d_model: usize, n_ff: usize) -> Result<Down> {
        let transposed = format!("blk.{n}.ffn_down_t");
        if let Some(weight) = self.optional_matrix(&format!("{transposed}.weight"), n_ff, d_model)? {
            // The bias belongs to outputs; files have it under either name.
            let bias = match self.optional_vector(&format!("{transposed}.bias"), d_model)? {
                None => self.optional_vector(&format!("blk.{n}.ffn_down.bias"), d_model)?,
                bias => bias,
            };
            return Ok(Down::Neurons(Linear { weight, bias }));
        }
        self.linear(&format!("blk.{n}.ffn_down"), d_model, n_ff).map(Down::Outputs)
    }

    /// A dense FFN; `gated` says whether the architecture has a gate.
    pub(super) fn dense_ffn(&self, n: usize, config: &ModelConfig, gated: bool) -> Result<FfnWeights> {
        let (d, n_ff) = (config.d_model, self.dense_width(config)?);
        let gate = gated.then(|| self.linear(&format!("blk.{n}.ffn_gate"), n_ff, d)).transpose()?;
        Ok(FfnWeights { gate, up: self.linear(&format!("blk.{n}.ffn_up"), n_ff, d)?, down: self.down(n, d, n_ff)? })
    }

    /// The activation predictor of layer `n`, if the file has one.
    pub(super) fn predictor(&self, n: usize, config: &ModelConfig) -> Result<Option<Predictor>> {
        let name = format!("blk.{n}.fc1.weight");
        let Some(fc1) = self.find(&name) else { return Ok(None) };
        let rank = fc1.rows();
        let fc1 = self.as_matrix(fc1, &[rank, config.d_model])?;
        let fc2 = self.matrix(&format!("blk.{n}.fc2.weight"), config.n_ff, rank)?;
        let threshold = self.metadata().f32("powerinfer.sparse_threshold")?.unwrap_or(0.0);
        let (kind, input) = (PredictorKind::LowRank { fc1, fc2 }, PredictorInput::Residual);
        Ok(Some(Predictor { kind, input, threshold, quality: None }))
    }
}

/// The magnitude YaRN gives cos and sin when a file names none (equation 22 of the paper).
pub(super) fn yarn_magnitude(factor: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
}

/// The elements of an integer array, negative ones excluded.
fn integers(array: &Array) -> Option<Vec<u64>> {
    match array {
        Array::U8(v) => Some(v.iter().map(|&v| v.into()).collect()),
        Array::U16(v) => Some(v.iter().map(|&v| v.into()).collect()),
        Array::U32(v) => Some(v.iter().map(|&v| v.into()).collect()),
        Array::U64(v) => Some(v.clone()),
        Array::I8(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        Array::I16(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        Array::I32(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        Array::I64(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        _ => None,
    }
}
