//! Firing frequencies. A [`Profiler`] observes a model while it computes text and counts firings into a [`Profile`]; an
//! [`InputRecorder`] stores the inputs of the FFNs, from which predictors are trained and measured. Both are the
//! [`Probe`](thermocline_run::runtime::Probe) of a forward pass, and both can discard a text that was not finished.
//!
//! A neuron fires where its hidden activation is not zero (ReLU family). Where activations are never exactly zero, those
//! fire that make up the smallest set holding [`MASS_OF_ACTIVE`](super::predictor::metrics::MASS_OF_ACTIVE) of the mass
//! `|a_i| |d_i|` of a token, `d_i` being the neuron's column of the down projection. In a mixture of experts (MoE) only neurons
//! of chosen experts fire, each expert on its own, and the chosen experts are counted too.

mod counts;
mod profiler;
mod recorder;

pub use counts::{Profile, smallest_fraction};
pub use profiler::Profiler;
pub use recorder::InputRecorder;
