//! Synthetic models: random weights at published shapes whose neurons fire as those of trained ReLU models do, so that
//! speed, placement and prediction can be measured without downloading anything.
//!
//! A shape is metadata and a choice among optional tensors (`shapes`, `architectures`). The architecture's family, asked without a file,
//! says which tensors there are; they are filled by their roles (`content`).
//!
//! One channel of the residual stream (`plan`) is constant over tokens and no layer writes to it. Through that channel every
//! neuron gets its own bias, chosen so that it fires with a given probability; the probabilities follow a power law
//! (`firing`). Firing rows are sums of a few common directions plus noise (`neurons`), so a small predictor can find most of
//! the firings; the predictor in the file is built from those directions, with a threshold per neuron for a given recall. Rows
//! are generated and quantised on all threads (`parallel`) and written at once; sampled tokens are computed with the quantised
//! rows on the way (`sample`) to measure how the file fires.
//!
//! In a mixture of experts (MoE) every expert is such an FFN with a power law of its own, and experts are chosen by a flatter
//! one (`expert_choice`), again through the constant channel. MoE layers have no predictors.
//!
//! [`outline()`] is such a model without its weights, for plans.
//!
//! Everything is a function of the seed: each row has its own random stream (`random`), so the number of threads does
//! not matter.

mod architectures;
mod content;
mod draft;
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
