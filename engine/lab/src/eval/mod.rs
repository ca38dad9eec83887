//! Quality of a model and the cost of sparsity: perplexity as llama.cpp defines it ([`perplexity`]), divergence from the dense
//! model token by token ([`divergence`]), recall of predictors ([`recall`]), and all of it over the degree of sparsity
//! ([`sweep`]); and what single neurons do: their parts of a token's logit ([`attribution()`]), its fall without them
//! ([`switching_off()`]), the tokens they speak for ([`neuron_lens()`]) and the neurons that speak for some tokens ([`token_neurons()`]).
//! A [`Corpus`] holds the tokens that are scored, a [`Method`] how they are computed. [`plot`] draws charts.
//!
//! Prompts are computed densely in every mode, so scoring a text in chunks ([`Phase::Prefill`]) measures the dense model in
//! any mode. [`Phase::Decode`] computes it token by token, as generation does, which measures a sparse mode.
//!
//! Everything is deterministic: the same text, model and method give the same figures to the last bit, on one device.

mod attribution;
mod base_file;
mod conditions;
mod corpus;
mod divergence;
mod levels;
mod neuron_lens;
mod observer;
mod perplexity;
pub mod plot;
mod recall;
mod score;
pub mod statistics;
mod sweep;
mod switching_off;
mod token_neurons;

pub use attribution::{Attribution, NeuronEffect, attribution, continuation};
pub use base_file::{BaseFile, BaseWriter};
pub use conditions::Conditions;
pub use corpus::{Corpus, CorpusPassage};
pub use divergence::{Base, Divergence, LEAST_TOKENS, divergence, write_base};
pub use levels::{Level, LevelChange, PruneOrder, Walk};
pub use neuron_lens::{NeuronLens, neuron_lens};
pub use observer::{Activity, Control, LayerActivity};
pub use perplexity::{Perplexity, perplexity};
pub use recall::{LayerRecall, Recall, recall};
pub use score::{Method, Phase};
pub use statistics::{Estimate, Percentiles};
pub use sweep::{SweepPoint, SweepSetup, sweep};
pub use switching_off::{SwitchingOff, switching_off};
pub use token_neurons::token_neurons;
