//! Description of a shape under construction: metadata keys, and the choice of optional tensors.

use super::{options::SynthOptions, plan::NORM_EPS, shape::SynthShape};
use crate::{Model, RecordedModel, TensorChoice};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::{Metadata, Value};

/// Stacked matrices of experts: gate, up, down.
pub(super) const EXPERTS: [&str; 3] = ["ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"];

/// Metadata and tensor choice of a shape.
#[derive(Debug)]
pub(super) struct ShapeDraft {
    pub(super) metadata: Metadata,
    pub(super) choice: TensorChoice,
    architecture: &'static str,
}

impl ShapeDraft {
    /// Describes `shape`: the keys that every architecture has, and its own keys.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number of layers that the shape does not support.
    pub fn new(shape: &SynthShape, options: &SynthOptions) -> Result<Self> {
        let (metadata, architecture) = (Metadata::new(&options.out), shape.architecture);
        let mut draft = ShapeDraft { metadata, choice: TensorChoice::default(), architecture };
        for (key, value) in [
            ("architecture", Value::String(architecture.to_owned())),
            ("type", Value::String("model".to_owned())),
            ("name", Value::String(format!("synthetic {}", shape.name))),
            ("file_type", Value::U32(super::metadata::file_type(options.ty))),
            ("quantization_version", Value::U32(2)),
        ] {
            draft.metadata.set(format!("general.{key}"), value);
        }
        for (key, size) in [
            ("block_count", shape.n_layer),
            ("context_length", shape.context),
            ("embedding_length", shape.d_model),
            ("attention.head_count", shape.n_head),
            ("feed_forward_length", shape.n_ff),
            ("attention.head_count_kv", shape.n_kv_head),
            ("vocab_size", shape.n_vocab),
        ] {
            draft.size(key, size);
        }
        if let Some(moe) = shape.moe {
            draft.size("expert_count", moe.experts);
            draft.size("expert_used_count", moe.used);
        }
        draft.rows("token_embd.weight", shape.n_vocab);
        if !shape.tied {
            draft.have(&["output.weight"]);
        }
        (shape.describe)(shape, &mut draft)?;
        draft.text("hidden_activation", shape.activation.name());
        Ok(draft)
    }

    /// Sets a key of the architecture.
    pub fn set(&mut self, key: &str, value: Value) {
        self.metadata.set(format!("{}.{key}", self.architecture), value);
    }

    /// Sets a key to a size. No size of a shape is close to 2^32.
    pub fn size(&mut self, key: &str, size: usize) {
        self.set(key, Value::U32(size as u32));
    }

    pub fn float(&mut self, key: &str, value: f32) {
        self.set(key, Value::F32(value));
    }

    pub fn text(&mut self, key: &str, text: &str) {
        self.set(key, Value::String(text.to_owned()));
    }

    /// Chooses optional tensors, named without `blk.N.`.
    pub fn have(&mut self, names: &[&str]) {
        self.choice.optional.extend(names.iter().map(|name| (*name).to_owned()));
    }

    /// Sets the first dimension of a tensor that no key determines.
    pub fn rows(&mut self, name: &str, rows: usize) {
        self.choice.rows.push((name.to_owned(), rows));
    }

    /// Sets RMS norms, and rotations of `dims` elements with this base of frequencies.
    pub fn rms_and_rope(&mut self, dims: usize, base: f32) {
        self.float("attention.layer_norm_rms_epsilon", NORM_EPS);
        self.rope(dims, base);
    }

    /// Sets layer norms with biases.
    pub fn layer_norms(&mut self, names: &[&str]) {
        self.float("attention.layer_norm_epsilon", NORM_EPS);
        self.have(names);
    }

    pub fn rope(&mut self, dims: usize, base: f32) {
        self.size("rope.dimension_count", dims);
        self.float("rope.freq_base", base);
    }

    /// Sets the elements of a head, for shapes whose heads together are not as wide as the residual
    /// stream.
    pub fn head(&mut self, head: usize) {
        self.size("attention.key_length", head);
        self.size("attention.value_length", head);
    }

    /// Sets the sizes of experts, if the shape has a shared expert.
    pub fn shared_expert(&mut self, shape: &SynthShape) {
        let Some(shared) = shape.shared_ff else { return };
        self.size("expert_feed_forward_length", shape.n_ff);
        self.size("expert_shared_feed_forward_length", shared);
        self.rows("ffn_up_shexp.weight", shared);
    }

    /// Sets a router with a sigmoid and a bias. The weights of the chosen experts add up to
    /// `scale`.
    pub fn sigmoid_router(&mut self, scale: f32) {
        self.size("expert_gating_func", 2);
        self.set("expert_weights_norm", Value::Bool(true));
        self.float("expert_weights_scale", scale);
        self.size("expert_shared_count", 1);
        self.have(&["exp_probs_b.bias"]);
    }

    /// Builds the model that the family's loader requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that the loader refuses.
    pub fn record(&self) -> Result<RecordedModel> {
        Model::recorded(self.metadata.clone(), self.choice.clone()).map_err(|error| match error {
            Error::Malformed { location, expected, got, .. } => {
                Error::invalid("shape", format!("{expected}{location}"), got)
            }
            other => other,
        })
    }
}
