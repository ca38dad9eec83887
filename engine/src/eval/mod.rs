//! How good a model's guesses are, and what leaving neurons out costs: perplexity as llama.cpp defines it ([`perplexity`]),
//! distance from the dense model token by token ([`divergence`]), the predictors' figures ([`recall`]), and the curve of all
//! of it over how much is left out ([`sweep`]). A [`Corpus`] says which tokens are scored, a [`Method`] how they are computed.
//!
//! Prompts are computed densely in every mode, so that scoring a text in chunks ([`Phase::Prefill`]) measures the dense
//! model, whatever the mode. [`Phase::Decode`] feeds it token by token, as generating does: the honest figure of a sparse mode.
//!
//! Everything is deterministic: the same text, model and method give the same figures to the last bit, on one device.

mod base_file;
mod conditions;
mod corpus;
mod divergence;
mod levels;
mod perplexity;
pub mod plot;
mod recall;
mod score;
pub mod statistics;
mod sweep;
mod watch;

pub use base_file::{BaseFile, BaseWriter};
pub use conditions::Conditions;
pub use corpus::{Corpus, Passage};
pub use divergence::{Base, Divergence, LEAST_TOKENS, divergence, write_base};
pub use levels::{Level, Walk};
pub use perplexity::{Perplexity, perplexity};
pub use recall::{LayerRecall, Recall, recall};
pub use score::{Method, Phase};
pub use statistics::{Estimate, Percentiles};
pub use sweep::{SweepPoint, sweep};
pub use watch::{Activity, Control, LayerActivity};
