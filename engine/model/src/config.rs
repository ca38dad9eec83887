//! Sizes and variants of a model and of its layers: everything that the forward pass needs besides
//! the weights.

use std::sync::Arc;

use super::{
    AltupConfig, AttentionConfig, Experts, NormKind, Pooling, Position, RecurrentConfig, Register, Rope, StateShape,
    Step,
    load::{LayerTensors, Loader},
};
use thermocline_cpu::ops::AttentionWindow;
pub use thermocline_cpu::ops::{Activation, ActivationForm};

/// Configuration of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Program of the layer.
    pub steps: Arc<[Step]>,
    /// Attention of the layer, if it has one.
    pub attention: Option<AttentionConfig>,
    /// Recurrent mixer of the layer, if it has one.
    pub recurrent: Option<RecurrentConfig>,
    /// Number of neurons of the dense FFN; for MoE layers see [`Experts::n_ff`].
    pub n_ff: usize,
}

impl LayerConfig {
    /// Returns the register that the router reads before the FFN; `None` if it reads the FFN's
    /// input.
    pub fn early_router_input(&self) -> Option<Register> {
        self.steps.iter().find_map(|step| match step {
            Step::Route { from } => Some(*from),
            _ => None,
        })
    }

    /// Returns the index of the FFN step in the program, and the register that the FFN reads.
    fn ffn_step(&self) -> Option<(usize, Register)> {
        self.steps.iter().enumerate().find_map(|(at, step)| match step {
            Step::Ffn { from } => Some((at, *from)),
            _ => None,
        })
    }

    /// Returns the register that the FFN reads.
    pub fn ffn_input(&self) -> Option<Register> {
        self.ffn_step().map(|(_, from)| from)
    }

    /// Returns the index of the norm step whose output the FFN reads.
    pub fn ffn_norm(&self) -> Option<usize> {
        let (ffn, from) = self.ffn_step()?;
        self.steps[..ffn].iter().rposition(|step| matches!(step, Step::Norm { into, .. } if *into == from))
    }

    /// Returns the input register of the FFN's norm if that register changes before the FFN runs.
    /// This happens in layers with attention and FFN in parallel.
    pub fn early_ffn_input(&self) -> Option<Register> {
        let ((ffn, from), norm) = (self.ffn_step()?, self.ffn_norm()?);
        self.steps[norm..ffn].contains(&Step::AddOut).then_some(from)
    }

    /// Returns the shape of the layer's recurrent state, if it has one.
    pub fn state(&self) -> Option<StateShape> {
        self.recurrent.as_ref().map(RecurrentConfig::state)
    }
}

/// Sizes and variants of one model. Loading checks all sizes against the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// GGUF's name of the architecture.
    pub architecture: String,
    /// Name of the model; the name of the file if the metadata has none.
    pub name: String,
    /// Width of the residual stream, `d`.
    pub d_model: usize,
    /// Number of neurons of the widest dense layer; for MoE layers see [`Experts::n_ff`].
    pub n_ff: usize,
    /// Number of tokens in the vocabulary: rows of the head.
    pub n_vocab: usize,
    /// Number of tokens of the training context, and the default context.
    pub context_length: usize,
    /// Longest context in which attention reads all keys (InfLLM-v2). In longer contexts it would
    /// read chosen keys only, so the engine refuses them.
    pub dense_context: Option<usize>,
    /// True for an assistant. Its layers read keys and values of layers of another model, which
    /// [`AttentionConfig::kv_from`] names.
    pub reads_other_keys: bool,
    /// Kind of norm, for the whole model.
    pub norm: NormKind,
    /// Epsilon that norms add under the root.
    pub norm_eps: f32,
    /// Encoding of positions.
    pub position: Position,
    /// Rotation tables, which layers refer to by index.
    pub ropes: Vec<Rope>,
    /// Activation of the FFNs.
    pub activation: Activation,
    /// Mixture of experts, in MoE models.
    pub experts: Option<Experts>,
    /// Width of each layer's own input besides the residual stream
    /// ([`PerLayerTable`](super::PerLayerTable)).
    pub per_layer_input: Option<usize>,
    /// Sizes of the further streams, in models with several streams (AltUp).
    pub altup: Option<AltupConfig>,
    /// Factor on embeddings (Gemma: `sqrt(d)`).
    pub embedding_scale: f32,
    /// Factor on the outputs of attention and FFN before the addition to the residual stream
    /// (Granite).
    pub residual_scale: f32,
    /// Factor on logits (Cohere, Granite). Loading multiplies it into the final norm.
    pub logit_scale: f32,
    /// Cap on logits: `cap * tanh(x / cap)`.
    pub final_softcap: Option<f32>,
    /// How hidden states become an embedding, in models that embed or rank texts and generate none.
    pub pooling: Option<Pooling>,
    /// Configuration of each layer.
    pub layers: Vec<LayerConfig>,
}

impl ModelConfig {
    /// True for an encoder: its tokens read later tokens too. A whole text is then one pass.
    pub fn is_encoder(&self) -> bool {
        self.attentions().any(|attention| attention.seen().ahead > 0)
    }

    /// True if the model embeds or ranks texts and generates none.
    pub fn embeds_only(&self) -> bool {
        self.pooling.is_some() || self.is_encoder()
    }

    /// Lets every token read later tokens, too. A window then has half of its length on each side.
    pub(crate) fn read_both_directions(&mut self) {
        for attention in self.attentions_mut() {
            attention.window = Some(match attention.window {
                Some(window) if window.ahead > 0 => window,
                Some(window) => AttentionWindow::symmetric(window.length / 2),
                None => AttentionWindow::BOTH_DIRECTIONS,
            });
        }
    }

    /// Returns the number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Iterates over the attention of every layer that has one.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionConfig> {
        self.layers.iter().filter_map(|layer| layer.attention.as_ref())
    }

    /// Iterates mutably over the attention of every layer that has one.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = &mut AttentionConfig> {
        self.layers.iter_mut().filter_map(|layer| layer.attention.as_mut())
    }

    /// Returns the total width of all layers' own inputs, in elements per token.
    pub fn per_layer_inputs(&self) -> usize {
        self.per_layer_input.map_or(0, |width| width * self.n_layer())
    }

    /// Returns the number of streams: the residual stream plus the further streams (AltUp).
    pub fn streams(&self) -> usize {
        self.altup.map_or(1, |altup| altup.streams)
    }

    /// Returns the layer whose keys and values `layer` reads: `layer` itself, or the layer that
    /// shares them. `None` without attention.
    pub fn kv_source(&self, layer: usize) -> Option<usize> {
        let attention = self.layers.get(layer)?.attention.as_ref()?;
        Some(attention.kv_from.unwrap_or(layer))
    }

    /// Returns the window for which the keys and values of `layer` are kept: the widest window of
    /// the layers that read them. `None` if one of these layers reads all keys.
    pub fn kept_window(&self, layer: usize) -> Option<usize> {
        let readers = (0..self.n_layer()).filter(|reader| self.kv_source(*reader) == Some(layer));
        // A pass of an encoder is a whole text.
        let window = |of: &AttentionConfig| of.window.filter(|window| window.ahead == 0).map(|window| window.length);
        let windows = readers.filter_map(|reader| self.layers[reader].attention.as_ref()).map(window);
        windows.reduce(|widest, window| Some(widest?.max(window?))).flatten()
    }

    /// True if some layer has a recurrent state. Such a state cannot return to an earlier token.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.state().is_some())
    }

    /// Returns the bytes of the recurrent states of one conversation.
    pub fn state_bytes(&self) -> u64 {
        self.layers.iter().filter_map(LayerConfig::state).map(|state| state.bytes()).sum()
    }

    /// Gives every layer the program `steps`.
    pub fn set_steps(&mut self, steps: Vec<Step>) {
        let steps: Arc<[Step]> = steps.into();
        self.layers.iter_mut().for_each(|layer| layer.steps = Arc::clone(&steps));
    }

    /// Returns the index of `rope` in [`ModelConfig::ropes`], and appends it if it is new.
    pub fn add_rope(&mut self, rope: Rope) -> usize {
        self.ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        })
    }

    /// Returns the rotations of `layer`'s queries and keys.
    pub fn rope(&self, layer: usize) -> Option<&Rope> {
        self.layers.get(layer)?.attention.as_ref()?.positions.rope_in(&self.ropes)
    }

    /// Returns access to the tensors of layer `n` in a checkpoint.
    pub(crate) fn layer_tensors<'a>(&self, loader: &'a Loader<'a>, n: usize) -> LayerTensors<'a> {
        LayerTensors { loader, n, d_model: self.d_model, norm: self.norm }
    }
}
