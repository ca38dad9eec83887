//! Firing frequencies. A [`Profiler`] observes a model while it computes text and counts firings
//! into a [`Profile`]. An [`InputRecorder`] stores the inputs of the FFNs, for training and
//! measuring predictors. Both are a [`Probe`](thermocline_run::runtime::Probe) of a forward pass,
//! and both can discard an unfinished text.
//!
//! In the ReLU family, a neuron fires if its hidden activation is not zero. In models whose
//! activations are never exactly zero, the firing neurons are the smallest set that holds
//! [`MASS_OF_ACTIVE`](super::predictor::metrics::MASS_OF_ACTIVE) of a token's mass. The mass of a
//! neuron is `|a_i| |d_i|`, where `d_i` is the neuron's column of the down projection. In a mixture
//! of experts (MoE), only neurons of chosen experts fire. Each expert has its own set, and the
//! chosen experts are counted too.

mod counts;
mod profiler;
mod recorder;

pub use counts::{Profile, smallest_fraction};
pub use profiler::Profiler;
pub use recorder::InputRecorder;
