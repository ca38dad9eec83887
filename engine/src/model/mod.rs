//! A model: its configuration ([`ModelConfig`]), its weights by role ([`Weights`]) and the description of a layer as a
//! short program of coarse steps ([`Step`]). An architecture family is one file that fills these in from GGUF metadata
//! (and maps Hugging Face folders to them); the forward driver walks the program and does not know families.

mod config;
mod step;
mod weights;

pub use config::{Activation, Experts, LayerConfig, ModelConfig, NormKind, Position, Rope, RopeOrder, RopeScaling};
pub use step::{NormSlot, Register, Step};
pub use weights::{
    AttentionWeights, Down, ExpertWeights, Ffn, FfnWeights, LayerWeights, Linear, Norm, Predictor, Weights,
};

use crate::format::Checkpoint;

/// A model that can be run: immutable, shared by sessions.
#[derive(Debug)]
pub struct Model {
    /// Sizes and variants.
    pub config: ModelConfig,
    /// Weights by role, still in their file types.
    pub weights: Weights,
    /// The file they came from.
    pub checkpoint: Checkpoint,
}
