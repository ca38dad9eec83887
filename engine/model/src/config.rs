//! Sizes and variants of a model and of its layers: everything that the forward pass needs beside the weights.

use std::sync::Arc;

use super::{
    AltupConfig, AttentionConfig, Experts, NormKind, Position, RecurrentConfig, Register, Rope, StateShape, Step,
    load::{LayerTensors, Loader},
};
pub use thermocline_cpu::ops::{Activation, ActivationForm};

/// Configuration of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Program of the layer.
    pub steps: Arc<[Step]>,
    /// Its attention, if it has one.
    pub attention: Option<AttentionConfig>,
    /// Its recurrent mixer, if it has one.
    pub recurrent: Option<RecurrentConfig>,
    /// Neurons of its dense FFN; for MoE layers see [`Experts::n_ff`].
    pub n_ff: usize,
}

impl LayerConfig {
    /// The register that the router reads ahead of the FFN; `None` if it reads the FFN's input.
    pub fn early_router_input(&self) -> Option<Register> {
        self.steps.iter().find_map(|step| match step {
            Step::Route { from } => Some(*from),
            _ => None,
        })
    }

    /// The FFN's step in the program, and the register that it reads.
    fn ffn_step(&self) -> Option<(usize, Register)> {
        self.steps.iter().enumerate().find_map(|(at, step)| match step {
            Step::Ffn { from } => Some((at, *from)),
            _ => None,
        })
    }

    /// The register that the program's FFN reads.
    pub fn ffn_input(&self) -> Option<Register> {
        self.ffn_step().map(|(_, from)| from)
    }

    /// The step of the norm whose output the FFN reads.
    pub fn ffn_norm(&self) -> Option<usize> {
        let (ffn, from) = self.ffn_step()?;
        self.steps[..ffn].iter().rposition(|step| matches!(step, Step::Norm { into, .. } if *into == from))
    }

    /// The register that the program's FFN reads, if the residual stream changes between its norm and the FFN, as in layers with
    /// attention and FFN in parallel: the norm's input is then overwritten before the FFN runs.
    pub fn early_ffn_input(&self) -> Option<Register> {
        let ((ffn, from), norm) = (self.ffn_step()?, self.ffn_norm()?);
        self.steps[norm..ffn].contains(&Step::AddOut).then_some(from)
    }

    /// Shape of its recurrent state, if it has one.
    pub fn state(&self) -> Option<StateShape> {
        self.recurrent.as_ref().map(RecurrentConfig::state)
    }
}

/// Sizes and variants of one model. All sizes are checked against the weights when it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// GGUF's name of the architecture.
    pub architecture: String,
    /// The model's own name, or the file's.
    pub name: String,
    /// Width of the residual stream, `d`.
    pub d_model: usize,
    /// Neurons of the widest dense layer; for MoE layers see [`Experts::n_ff`].
    pub n_ff: usize,
    /// Rows of the head.
    pub n_vocab: usize,
    /// Tokens the model was trained to see, the default context.
    pub context_length: usize,
    /// Longest context in which attention sees all keys, where it sees chosen ones in longer ones (InfLLM-v2); these are refused.
    pub dense_context: Option<usize>,
    /// Kind of norm, for the whole model.
    pub norm: NormKind,
    /// Added under the root.
    pub norm_eps: f32,
    /// Positions.
    pub position: Position,
    /// Tables of rotations that layers name.
    pub ropes: Vec<Rope>,
    /// FFN activation.
    pub activation: Activation,
    /// Mixture of experts, in MoE models.
    pub experts: Option<Experts>,
    /// Elements of the input that each layer has of its own beside the residual stream ([`PerLayerTable`](super::PerLayerTable)).
    pub per_layer_input: Option<usize>,
    /// Streams beside the residual one, in models that have several.
    pub altup: Option<AltupConfig>,
    /// Factor on embeddings (Gemma: `sqrt(d)`).
    pub embedding_scale: f32,
    /// Factor on the outputs of attention and FFN where they are added to the residual stream (Granite).
    pub residual_scale: f32,
    /// Factor on logits (Cohere, Granite); loading multiplies it into the final norm.
    pub logit_scale: f32,
    /// `cap * tanh(x / cap)` on logits.
    pub final_softcap: Option<f32>,
    /// One per layer.
    pub layers: Vec<LayerConfig>,
}

impl ModelConfig {
    /// Number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// The attention of every layer that has one.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionConfig> {
        self.layers.iter().filter_map(|layer| layer.attention.as_ref())
    }

    /// The same, to change it.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = &mut AttentionConfig> {
        self.layers.iter_mut().filter_map(|layer| layer.attention.as_mut())
    }

    /// Elements of the inputs that the layers have of their own, of a token and all layers together.
    pub fn per_layer_inputs(&self) -> usize {
        self.per_layer_input.map_or(0, |width| width * self.n_layer())
    }

    /// Streams of the model: the residual one, and those beside it where there are several.
    pub fn streams(&self) -> usize {
        self.altup.map_or(1, |altup| altup.streams)
    }

    /// True if a chunk begins with embeddings alone: no stream or input of a layer is made of them.
    pub fn begins_with_embeddings(&self) -> bool {
        self.per_layer_input.is_none() && self.streams() == 1
    }

    /// The layer whose keys and values `layer` reads: itself, or the one it shares them with; `None` without attention.
    pub fn kv_source(&self, layer: usize) -> Option<usize> {
        let attention = self.layers.get(layer)?.attention.as_ref()?;
        Some(attention.kv_from.unwrap_or(layer))
    }

    /// The window that keys and values of `layer` are kept for: the widest of the layers that read them; `None` if one of these
    /// sees all.
    pub fn kept_window(&self, layer: usize) -> Option<usize> {
        let readers = (0..self.n_layer()).filter(|reader| self.kv_source(*reader) == Some(layer));
        let windows = readers.filter_map(|reader| self.layers[reader].attention.as_ref()).map(|of| of.window);
        windows.reduce(|widest, window| Some(widest?.max(window?))).flatten()
    }

    /// True if a layer has a recurrent state, which cannot be taken back to an earlier token.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.state().is_some())
    }

    /// Bytes of the recurrent states of one conversation.
    pub fn state_bytes(&self) -> u64 {
        self.layers.iter().filter_map(LayerConfig::state).map(|state| state.bytes()).sum()
    }

    /// Gives every layer the program `steps`.
    pub fn set_steps(&mut self, steps: Vec<Step>) {
        let steps: Arc<[Step]> = steps.into();
        self.layers.iter_mut().for_each(|layer| layer.steps = Arc::clone(&steps));
    }

    /// Index of `rope` among [`ModelConfig::ropes`], where it is added if it is new.
    pub fn add_rope(&mut self, rope: Rope) -> usize {
        self.ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        })
    }

    /// The rotations of `layer`'s queries and keys.
    pub fn rope(&self, layer: usize) -> Option<&Rope> {
        self.ropes.get(self.layers.get(layer)?.attention.as_ref()?.rope?)
    }

    /// The tensors of layer `n` in a checkpoint.
    pub(crate) fn layer_tensors<'a>(&self, loader: &'a Loader<'a>, n: usize) -> LayerTensors<'a> {
        LayerTensors { loader, n, d_model: self.d_model, norm: self.norm }
    }
}
