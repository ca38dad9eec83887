//! Gemma 4's own parts of a shape: two head sizes, an input per layer, shared keys and values.

use super::{
    plan::{ATTENTION_GROWTH, Content, RESERVED, SynthPlan},
    random::StreamPurpose,
    shape::{SynthFamily, SynthShape},
};
use crate::{
    format::{Array, Value},
    quant::TensorType,
};

/// The last layer of so many has no window.
const INTERVAL: usize = 6;
/// Positions that a layer with a window sees.
const WINDOW: u32 = 512;
/// Layers of E4B that read keys and values of earlier ones, of how many.
const SHARED_KV: (usize, usize) = (18, 42);

impl SynthShape {
    /// True if layer `layer` has a window.
    fn windowed(&self, layer: usize) -> bool {
        self.family == SynthFamily::Gemma4 && !(layer + 1).is_multiple_of(INTERVAL)
    }

    /// Elements per head of layer `layer`: twice as many in Gemma 4's layers without a window.
    pub(super) fn head_dim_of(&self, layer: usize) -> usize {
        let wide = self.family == SynthFamily::Gemma4 && !self.windowed(layer);
        self.head_dim() * if wide { 2 } else { 1 }
    }

    /// Last layers without keys and values of their own. A layer of either kind comes before them.
    fn shared_kv_layers(&self) -> usize {
        match self.family {
            SynthFamily::Gemma4 => {
                (self.n_layer * SHARED_KV.0 / SHARED_KV.1).min(self.n_layer.saturating_sub(INTERVAL))
            }
            _ => 0,
        }
    }

    /// True if layer `layer` reads keys and values of an earlier one.
    pub(super) fn reads_earlier_kv(&self, layer: usize) -> bool {
        layer + self.shared_kv_layers() >= self.n_layer
    }

    /// Elements of the input that each layer of Gemma 4 has of its own: 256 of 2,560.
    fn per_layer_input(&self) -> usize {
        self.d_model / 10 / 32 * 32
    }
}

/// Sets the metadata keys that only Gemma 4 has, without the architecture's prefix.
pub(super) fn set_keys(shape: &SynthShape, set: &mut dyn FnMut(&str, Value)) {
    let size = |size: usize| Value::U32(size as u32);
    for key in ["attention.key_length", "attention.value_length"] {
        set(key, size(2 * shape.head_dim()));
        set(&format!("{key}_swa"), size(shape.head_dim()));
    }
    set("rope.dimension_count_swa", size(shape.head_dim()));
    set("rope.freq_base_swa", Value::F32(10_000.0));
    set("attention.sliding_window", Value::U32(WINDOW));
    let windowed = (0..shape.n_layer).map(|layer| shape.windowed(layer)).collect();
    set("attention.sliding_window_pattern", Value::Array(Array::Bool(windowed)));
    set("attention.shared_kv_layers", size(shape.shared_kv_layers()));
    set("embedding_length_per_layer_input", size(shape.per_layer_input()));
    set("final_logit_softcapping", Value::F32(30.0));
}

impl SynthPlan {
    /// Table and projection of the inputs per layer, and the rotation's factors.
    pub(super) fn list_gemma4_inputs(&mut self) {
        let SynthShape { d_model: d, n_layer, n_vocab, .. } = self.shape;
        let inputs = self.shape.per_layer_input();
        let normal = |purpose, std| Content::Normal { purpose, std, quiet: 0 };
        let (all, std) = (n_layer * inputs, 1.0 / (inputs as f32).sqrt());
        self.matrix("per_layer_token_embd.weight", 0, n_vocab, all, normal(StreamPurpose::PerLayerTable, std));
        self.matrix("per_layer_model_proj.weight", 0, all, d, normal(StreamPurpose::PerLayerProjection, 1.0));
        self.constant("per_layer_proj_norm.weight", 0, &[inputs], 1.0);
        // Layers without a window rotate the first quarter of the pairs.
        let pairs = self.shape.head_dim();
        let factors = (0..pairs).map(|pair| if pair < pairs / 4 { 1.0 } else { 1e30 }).collect();
        self.add("rope_freqs.weight", 0, TensorType::F32, &[pairs], Content::Vector(factors));
    }

    /// Norms behind the blocks of a layer, and its own input's matrices.
    pub(super) fn list_gemma4_layer(&mut self, layer: usize) {
        let SynthShape { d_model: d, n_layer, .. } = self.shape;
        let inputs = self.shape.per_layer_input();
        let at = |stem: &str| format!("blk.{layer}.{stem}");
        let head = self.shape.head_dim_of(layer);
        // Scores are not scaled: those of normed heads would be as large as the head is wide.
        let small = (head as f32).powf(-0.25);
        self.constant(&at("attn_q_norm.weight"), layer, &[head], small);
        if !self.shape.reads_earlier_kv(layer) {
            self.constant(&at("attn_k_norm.weight"), layer, &[head], small);
        }
        let part = (ATTENTION_GROWTH / n_layer as f64).sqrt() as f32;
        for stem in ["post_attention_norm", "post_ffw_norm", "post_norm"] {
            self.norm(&at(stem), layer, part, 0.0);
        }
        self.constant(&at("layer_output_scale.weight"), layer, &[1], 1.0);
        let normal = |purpose, std, quiet| Content::Normal { purpose, std, quiet };
        let gate = normal(StreamPurpose::PerLayerGate, self.keeping_std(), 0);
        self.matrix(at("inp_gate.weight"), layer, inputs, d, gate);
        self.matrix(at("proj.weight"), layer, d, inputs, normal(StreamPurpose::PerLayerOutput, 1.0, RESERVED));
    }
}
