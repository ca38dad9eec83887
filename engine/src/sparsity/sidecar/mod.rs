//! `<model>.thermocline.gguf`: what `prepare` found out about a model, in a GGUF beside it.
//!
//! A [`Sidecar`] holds, per layer, how often each neuron fires, a predictor of those that will, the cut of the threshold
//! mode, and the down projection with a row per neuron. Its [`Identity`] says which model that is true of. [`attach`] finds
//! a model's sidecar, and makes it part of the [`Model`](crate::model::Model); one that is of another model is ignored, and
//! the reason returned. Everything in it is optional but the identity: a layer without a predictor is computed without one.
//!
//! Keys are `thermocline.*` ([`keys`]). Tensors have PowerInfer's names where it has any: `blk.N.ffn_down_t.weight`
//! `[n_ff, d]`, `blk.N.fc1.weight` `[rank, d]`, `blk.N.fc2.weight` `[n_ff, rank]`; beside them `blk.N.gate_low.weight`
//! `[n_ff, d]` and `blk.N.neuron_freq` `[n_ff]` (`[experts]` where the FFN is a mixture). The neurons of a mixture's experts have
//! `blk.N.expert_neuron_freq` `[experts, n_ff]` and `blk.N.ffn_down_t.E.weight` `[n_ff, d]` of expert `E`; those of the expert that
//! every token passes through `blk.N.shared_neuron_freq` and `blk.N.ffn_down_shexp_t.weight`.

mod attach;
mod identity;
mod keys;
mod layer;
mod locate;
mod read;
mod write;

use std::path::PathBuf;

pub use identity::Identity;
pub use layer::{PreparedCut, PreparedDown, PreparedExperts, PreparedLayer, PreparedPredictor};
pub use locate::{Attachment, SidecarChoice, attach, path_beside};

use crate::model::Activation;

/// What is known of a model beside what its file says.
#[derive(Debug, Clone)]
pub struct Sidecar {
    /// The file it was read from, for messages; a name for one in memory.
    pub path: PathBuf,
    /// Which model it belongs to.
    pub identity: Identity,
    /// How it was made.
    pub provenance: Provenance,
    /// One per layer of the model.
    pub layers: Vec<PreparedLayer>,
}

/// How a sidecar was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Provenance {
    /// Activation the model was run with: firing means something else under another one.
    pub activation: Activation,
    /// What was read, in words: file names, or that the model wrote it itself.
    pub corpus: String,
    /// Tokens whose firing was counted.
    pub tokens_profiled: u64,
    /// Tokens among them the predictors were measured on and not made from.
    pub tokens_held_out: u64,
    /// Share of the firing neurons that predictors were to find.
    pub target_recall: f32,
    /// The same of the activation mass.
    pub target_mass_recall: f32,
}
