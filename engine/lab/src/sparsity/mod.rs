//! Learns a model's activation sparsity. [`profile`] counts firings and records the inputs of FFNs.
//! [`predictor`] trains and measures predictors of the neurons that fire, and sets thresholds.
//! [`prepare`] does both for a whole model and writes the [`sidecar`], the file beside a model that
//! holds the results.
//!
//! [`KeptCounts`] keeps firing counts between runs for models without a sidecar. [`migration`]
//! adapts the hot set to the text at run time. [`routes`] replays which experts tokens chose.

mod kept_counts;
pub mod migration;
pub mod predictor;
pub mod prepare;
pub mod profile;
pub mod routes;
pub mod sidecar;

pub use kept_counts::{KeptCounts, lacks_profile};
