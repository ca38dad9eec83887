//! Synthetic models: random weights in published shapes. Their neurons fire like those of trained
//! ReLU models, so that speed, placement and prediction can be measured without a download.
//!
//! A shape is metadata and a choice of optional tensors (`shapes`, `architectures`). The loader of
//! the architecture's family then lists the tensors without a file. Their roles determine their
//! contents (`content`).
//!
//! One channel of the residual stream (`plan`) is constant over tokens, and no layer writes to it.
//! It gives every neuron its own bias, so that the neuron fires with a given probability. The
//! probabilities follow a power law (`firing`). Firing rows are sums of a few common directions
//! plus noise (`neurons`), so a small predictor can find most of the firings. The predictor in the
//! file is built from these directions, with a threshold per neuron for a given recall. All threads
//! generate and quantise rows (`parallel`), and the rows are written at once. Sampled tokens run
//! through the quantised rows (`sample`) to measure how the file's neurons fire.
//!
//! In a mixture of experts (MoE), every expert is such an FFN with its own power law. Experts are
//! chosen by a flatter power law (`expert_choice`), also through the constant channel. MoE layers
//! have no predictors.
//!
//! Shapes of Qwen 3.5 can have a draft head that agrees with the model at a given fraction of the
//! tokens (`draft_head`).
//!
//! [`outline()`] returns such a model without its weights, for plans.
//!
//! The seed determines everything. Each row has its own random stream (`random`), so the number of
//! threads does not matter.

mod architectures;
mod content;
mod draft;
mod draft_head;
mod expert_choice;
mod firing;
mod generate;
mod metadata;
mod neurons;
mod options;
mod outline;
mod parallel;
mod plan;
mod random;
mod report;
mod sample;
mod shape;
mod shape_model;
mod shapes;

pub use generate::generate;
pub use options::SynthOptions;
pub use outline::{Outline, outline};
pub use report::{Firing, SynthProgress, SynthReport};
pub use shape::{ExpertCounts, SynthShape};
pub use shape_model::shape_model;
pub use shapes::shapes;

#[cfg(any(test, feature = "test-hooks"))]
pub mod unlisted;

#[cfg(test)]
mod tests;
