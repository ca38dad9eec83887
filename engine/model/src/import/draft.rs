//! GGUF metadata under construction.

use super::{HfConfig, LayerRope, Transform, naming::Naming};
use crate::{Activation, Router, RouterScore};
use thermocline_base::error::Result;
use thermocline_formats::{
    format::{Array, Bytes, Metadata, Tensor, Value},
    quant::TensorType,
};

/// Largest accepted number of layers, or of elements of a head.
const LARGEST: usize = 1 << 16;

/// GGUF metadata and tensor names that a family fills in from a `config.json`.
#[derive(Debug)]
pub(crate) struct Draft {
    arch: &'static str,
    pub(super) keys: Metadata,
    /// Rules for the names of tensors.
    pub(crate) naming: Naming,
    /// Tensors made from the configuration.
    pub(super) made: Vec<Tensor>,
    /// True if the head is the embedding, unless the configuration says otherwise.
    pub(crate) tied: bool,
    /// True if the head differs from the embedding. This overrides the configuration.
    pub(crate) own_head: bool,
    /// True if the model has no head, because it generates no text.
    pub(crate) headless: bool,
    /// Keys of the arrays whose last element is for the layer of a draft head.
    pub(super) with_draft_layer: Vec<String>,
}

/// Sizes that families need while importing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HfSizes {
    pub(crate) n_layer: usize,
    pub(crate) n_head: usize,
    pub(crate) n_kv_head: usize,
    pub(crate) head_dim: usize,
    /// Number of rotated elements per head.
    pub(crate) rope_dims: usize,
}

impl HfSizes {
    /// Returns the reordering of query rows.
    pub fn rope_query(&self) -> Transform {
        Transform::Rope { heads: self.n_head, dims: self.rope_dims }
    }

    /// Returns the reordering of key rows.
    pub fn rope_key(&self) -> Transform {
        Transform::Rope { heads: self.n_kv_head, dims: self.rope_dims }
    }
}

impl Draft {
    pub(super) fn new(hf: &HfConfig) -> Self {
        Draft {
            arch: "",
            keys: Metadata::new(hf.path()),
            naming: Naming::default(),
            made: Vec::new(),
            tied: false,
            own_head: false,
            headless: false,
            with_draft_layer: Vec::new(),
        }
    }

    /// Sets `{arch}.{suffix}`.
    pub fn set(&mut self, suffix: &str, value: Value) {
        self.keys.set(self.key(suffix), value);
    }

    /// Sets `{arch}.{suffix}` to an array of one element per layer, followed by an element for the
    /// layer of a draft head. Folders without a draft head do not get the last element.
    pub fn set_with_draft_layer(&mut self, suffix: &str, array: Array) {
        self.set(suffix, Value::Array(array));
        self.with_draft_layer.push(self.key(suffix));
    }

    /// Sets `{arch}.{suffix}` to an unsigned number.
    pub fn set_size(&mut self, suffix: &str, value: usize) -> Result<()> {
        let small = u32::try_from(value).map_err(|_| self.keys.missing(&self.key(suffix), "a number below 2^32"))?;
        self.set(suffix, Value::U32(small));
        Ok(())
    }

    /// Sets the number of token types, without which llama.cpp refuses files of BERT.
    pub fn token_types(&mut self, count: usize) {
        self.keys.set("tokenizer.ggml.token_type_count", Value::U32(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    /// Sets the number of experts, the number of experts per token, and the width of an expert,
    /// from these keys of `hf`.
    pub fn experts(&mut self, hf: &HfConfig, count: &[&str], used: &[&str], width: &[&str]) -> Result<()> {
        self.set_size("expert_count", hf.size(count)?)?;
        self.set_size("expert_used_count", hf.size(used)?)?;
        self.set_size("expert_feed_forward_length", hf.size(width)?)
    }

    /// Returns the number of layers.
    pub(super) fn layers(&self) -> Result<usize> {
        Ok(self.keys.usize(&self.key("block_count"))?.unwrap_or(usize::MAX))
    }

    /// Returns the key `{arch}.{suffix}`.
    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    /// Sets the activation's name.
    pub fn activation(&mut self, activation: Activation) {
        self.set("hidden_activation", Value::String(activation.name().to_owned()));
    }

    /// Sets how experts are chosen: from the configuration, and as in `default` for keys that it
    /// lacks.
    pub fn router(&mut self, hf: &HfConfig, default: Router) -> Result<()> {
        let score = match hf.str(&["scoring_func"])? {
            None => default.score,
            Some("softmax") => RouterScore::Softmax,
            Some("sigmoid") => RouterScore::Sigmoid,
            Some(other) => return Err(hf.error("scoring_func", "`softmax` or `sigmoid`", other)),
        };
        self.set("expert_gating_func", Value::U32(score.number()));
        let renormalise = hf.bool(&["norm_topk_prob"])?.unwrap_or(default.renormalise);
        self.set("expert_weights_norm", Value::Bool(renormalise));
        let scale = hf.f32(&["routed_scaling_factor"])?.unwrap_or(default.scale);
        self.set("expert_weights_scale", Value::F32(scale));
        if let (Some(groups), Some(used)) = (hf.usize(&["n_group"])?, hf.usize(&["topk_group"])?) {
            self.set_size("expert_group_count", groups)?;
            self.set_size("expert_group_used_count", used)?;
        }
        Ok(())
    }

    /// Sets the keys that every architecture has, for models that name `num_key_value_heads` and
    /// `intermediate_size`.
    pub fn common(&mut self, hf: &HfConfig, arch: &'static str) -> Result<HfSizes> {
        self.common_of_width(hf, arch, hf.size(&["intermediate_size", "ffn_dim"])?)
    }

    /// Sets the keys that every architecture has, for models that name `num_key_value_heads`. Their
    /// layers have `n_ff` neurons.
    pub fn common_of_width(&mut self, hf: &HfConfig, arch: &'static str, n_ff: usize) -> Result<HfSizes> {
        let n_head = hf.size(&["num_attention_heads", "n_head"])?;
        self.common_with(hf, arch, hf.or_default(&["num_key_value_heads"], n_head)?, n_ff)
    }

    /// Sets the keys of [`Draft::common`], rotations with the default base `base`, and the
    /// activation `hidden_act`.
    pub fn usual(&mut self, hf: &HfConfig, arch: &'static str, base: f32, activation: Activation) -> Result<HfSizes> {
        let sizes = self.common(hf, arch)?;
        self.rope(hf, &sizes, base)?;
        self.activation(hf.activation(&["hidden_act"], activation)?);
        Ok(sizes)
    }

    /// Sets the keys that every architecture has.
    pub fn common_with(&mut self, hf: &HfConfig, arch: &'static str, n_kv_head: usize, n_ff: usize) -> Result<HfSizes> {
        self.arch = arch;
        let string = |text: &str| Value::String(text.to_owned());
        self.keys.set("general.architecture", string(arch));
        self.keys.set("general.type", string("model"));
        let folder = hf.path().file_name().unwrap_or_default().to_string_lossy();
        self.keys.set("general.name", string(&folder));

        let d_model = hf.size(&["hidden_size", "n_embd"])?;
        let n_layer = hf.size(&["num_hidden_layers", "n_layer"])?;
        let n_head = hf.size(&["num_attention_heads", "n_head"])?;
        // Heads of latent attention have a rotated and an unrotated part.
        let parts = (hf.usize(&["qk_nope_head_dim"])?, hf.usize(&["qk_rope_head_dim"])?);
        let head_dim = match (hf.usize(&["head_dim"])?, parts) {
            (_, (Some(plain), Some(rotated))) => plain.saturating_add(rotated),
            (Some(head_dim), _) => head_dim,
            _ if d_model.is_multiple_of(n_head) => d_model / n_head,
            _ => return Err(hf.error("num_attention_heads", format!("a divisor of {d_model}"), n_head)),
        };
        // These numbers are the lengths of lists made below. They are checked here because the
        // tensors cannot check them yet.
        for (name, value) in [("num_hidden_layers", n_layer), ("head_dim", head_dim)] {
            if value == 0 || value > LARGEST {
                return Err(hf.error(name, format!("a number from 1 to {LARGEST}"), value));
            }
        }
        if hf.reads_both_directions()? {
            self.set("attention.causal", Value::Bool(false));
        }
        self.set_size("context_length", hf.or_default(&["max_position_embeddings", "n_positions"], 2048)?)?;
        self.set_size("embedding_length", d_model)?;
        self.set_size("block_count", n_layer)?;
        self.set_size("feed_forward_length", n_ff)?;
        self.set_size("attention.head_count", n_head)?;
        self.set_size("attention.head_count_kv", n_kv_head)?;
        self.set_size("attention.key_length", head_dim)?;
        self.set_size("attention.value_length", head_dim)?;
        self.set_size("vocab_size", hf.size(&["vocab_size"])?)?;
        if let Some(eps) = hf.f32(&["rms_norm_eps"])? {
            self.set("attention.layer_norm_rms_epsilon", Value::F32(eps));
        }
        let rope_dims = hf.rotated(LayerRope::Full, head_dim)?;
        Ok(HfSizes { n_layer, n_head, n_kv_head, head_dim, rope_dims })
    }

    /// Adds the vector `name`.
    pub fn vector(&mut self, name: &str, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = vec![values.len()];
        self.made.push(Tensor { name: name.to_owned(), ty: TensorType::F32, shape, data: Bytes::new(bytes) });
    }

    /// Extends the vector `name`, if it exists, to at least `len` elements, with ones.
    pub fn lengthen(&mut self, name: &str, len: usize) {
        if let Some(vector) = self.made.iter_mut().find(|it| it.name == name && it.shape.iter().all(|have| *have < len))
        {
            let further = 1f32.to_le_bytes().repeat(len - vector.len());
            vector.data = Bytes::new([&vector.data[..], &further].concat());
            vector.shape = vec![len];
        }
    }

    /// Adds weights for the norms `stems`, which have none in the folder: ones, `[width]`.
    pub fn norms_of_ones(&mut self, hf: &HfConfig, width: usize, stems: impl Iterator<Item = String>) -> Result<()> {
        if width > LARGEST {
            return Err(hf.error("hidden_size", format!("a number from 1 to {LARGEST}"), width));
        }
        let data = Bytes::new(1f32.to_le_bytes().repeat(width));
        self.made.extend(stems.map(|stem| {
            let name = format!("{stem}.weight");
            Tensor { name, ty: TensorType::F32, shape: vec![width], data: data.clone() }
        }));
        Ok(())
    }

    /// Sets the ids of special tokens from `generation_config.json` and `config.json`.
    pub(super) fn special_tokens(&mut self, hf: &HfConfig, generation: &serde_json::Value) -> Result<()> {
        for (name, key) in [
            ("bos_token_id", "tokenizer.ggml.bos_token_id"),
            ("eos_token_id", "tokenizer.ggml.eos_token_id"),
            ("pad_token_id", "tokenizer.ggml.padding_token_id"),
        ] {
            let configured = HfConfig::token_ids(hf.value(name));
            if let Some(&id) = configured.first() {
                self.keys.set(key, Value::U32(id));
            }
            if name == "eos_token_id" {
                let mut ends = HfConfig::token_ids(generation.get(name));
                ends.extend(configured.into_iter().filter(|id| !ends.contains(id)).collect::<Vec<_>>());
                if ends.len() > 1 {
                    self.keys.set("thermocline.tokenizer.end_token_ids", Value::Array(Array::U32(ends)));
                }
            }
        }
        let picture = ["image_token_id", "image_token_index"].iter().find_map(|name| hf.value(name));
        if let Some(&id) = HfConfig::token_ids(picture).first() {
            self.keys.set("thermocline.tokenizer.picture_token_id", Value::U32(id));
        }
        Ok(())
    }
}
