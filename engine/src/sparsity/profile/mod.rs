//! How often each neuron fires. A [`Profiler`] looks on while text runs through a model and counts into a [`Profile`]; an
//! [`InputRecorder`] keeps what the FFNs were given, for predictors to be made and measured from. Both take part in a
//! forward pass as its [`Probe`](crate::model::Probe), both take back what they saw of a text that was not finished.
//!
//! A neuron fires where its hidden activation is not zero (ReLU family). Where activations are never exactly zero, those
//! fire that make up the smallest set holding [`MASS_OF_ACTIVE`](super::predictor::metrics::MASS_OF_ACTIVE) of the mass
//! `|a_i| |d_i|` of a token, `d_i` being the neuron's column of the down projection. Of a mixture the neurons of chosen experts
//! fire, each expert's by themselves, and the experts chosen are counted beside them.

mod counts;
mod profiler;
mod recorder;

pub use counts::{Profile, busiest};
pub use profiler::Profiler;
pub use recorder::InputRecorder;
