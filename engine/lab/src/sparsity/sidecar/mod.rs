//! `<model>.thermocline.gguf`: the results of `prepare` for a model, in a GGUF file beside it.
//!
//! For each layer, a [`Sidecar`] holds firing frequencies, a predictor, the activation threshold of
//! the threshold mode, thresholds of product inputs, and the neuron-major down projection. Its
//! [`Identity`] identifies the model that it belongs to. [`attach`] finds a model's sidecar and
//! attaches it to the [`Model`](thermocline_model::Model). It ignores the sidecar of another model
//! and returns the reason. Everything except the identity is optional. For example, a layer without
//! a predictor is computed without one.
//!
//! Keys are `thermocline.*` ([`keys`]). Tensors use PowerInfer's names if it has any:
//! `blk.N.ffn_down_t.weight` `[n_ff, d]`, `blk.N.fc1.weight` `[rank, d]`, `blk.N.fc2.weight`
//! `[n_ff, rank]`. Other tensors are:
//!
//! - `blk.N.gate_low.weight` `[n_ff, d]` and `blk.N.neuron_freq` `[n_ff]` (`[experts]` in an MoE
//!   layer);
//! - `blk.N.gate_scales` `[n_ff]`, for dense layers with an activation threshold;
//! - for the neurons of experts, `blk.N.expert_neuron_freq` `[experts, n_ff]` and, for expert `E`,
//!   `blk.N.ffn_down_t.E.weight` `[n_ff, d]`;
//! - for the shared expert, `blk.N.shared_neuron_freq` and `blk.N.ffn_down_shexp_t.weight`;
//! - `blk.N.ffn_bundles` `[n_ff, bytes]` of I8 instead of the down projection of a dense layer, for
//!   models that are larger than RAM ([`bundles`]);
//! - for the inputs of a layer's products, `blk.N.inputs_SITE.importance` `[inputs]` and
//!   `blk.N.inputs_SITE.thresholds` `[levels]`.

mod attach;
mod bundles;
mod identity;
mod keys;
mod layer;
mod locate;
mod read;
mod write;

use std::path::PathBuf;

pub use bundles::PreparedBundles;
pub use identity::Identity;
pub use layer::{PreparedDown, PreparedExperts, PreparedLayer, PreparedPredictor, PreparedThreshold};
pub use locate::{SidecarAttachment, SidecarChoice, attach, path_beside};

use thermocline_model::{Activation, InputFigures};

/// Results of preparing a model.
#[derive(Debug, Clone)]
pub struct Sidecar {
    /// Path of the file, or a name for a sidecar in memory. For messages.
    pub path: PathBuf,
    /// Identity of the model that the sidecar belongs to.
    pub identity: Identity,
    /// Origin of the figures.
    pub provenance: Provenance,
    /// One entry per layer of the model.
    pub layers: Vec<PreparedLayer>,
    /// Costs of levels of input sparsity.
    pub input_figures: Vec<InputFigures>,
}

/// Origin of a sidecar's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Provenance {
    /// Activation that the model ran with. Other activations fire differently.
    pub activation: Activation,
    /// Description of the corpus: file names, or a note that the model generated it.
    pub corpus: String,
    /// Number of tokens whose firings were counted.
    pub tokens_profiled: u64,
    /// Number of counted tokens that predictors were only measured on.
    pub tokens_held_out: u64,
    /// Target recall of predictors, from 0 to 1.
    pub target_recall: f32,
    /// Target mass recall of predictors, from 0 to 1.
    pub target_mass_recall: f32,
}
