//! Measures the quality of a model and the cost of sparsity. [`perplexity`] is defined as in
//! llama.cpp, [`divergence`] compares with the dense model token by token, [`recall`] measures
//! predictors, and [`sweep`] varies the degree of sparsity.
//!
//! Other measures explain single neurons. [`attribution()`] computes their parts of a token's
//! logit, and [`switching_off()`] how far the logit falls without them. [`neuron_lens()`] lists the
//! tokens that a neuron promotes, and [`token_neurons()`] the neurons that promote some tokens.
//! [`token_firing()`] finds the neurons that work most at some tokens, such as those of a picture.
//!
//! [`route_prices()`] measures what a preference for resident experts costs and saves.
//! [`skip_prices()`] compares scores that select the weakest neurons to skip.
//!
//! A [`Corpus`] holds the scored tokens, and a [`Method`] says how they are computed. [`plot`]
//! draws charts.
//!
//! Prompts are computed densely in every mode. Scoring a text in chunks ([`Phase::Prefill`])
//! therefore measures the dense model. [`Phase::Decode`] computes token by token, as generation
//! does, which measures a sparse mode.
//!
//! All results are deterministic: on one device, the same text, model and method give the same
//! figures to the last bit.

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
mod route_prices;
mod score;
mod skip_calibration;
mod skip_scores;
pub mod statistics;
mod sweep;
mod switching_off;
mod token_firing;
mod token_neurons;

pub use attribution::{Attribution, NeuronEffect, Until, attribution, continuation};
pub use base_file::{BaseFile, BaseWriter};
pub use conditions::Conditions;
pub use corpus::{Corpus, CorpusPassage};
pub use divergence::{Base, Divergence, LEAST_TOKENS, divergence, write_base};
pub use levels::{Level, LevelChange, PruneOrder, Walk};
pub use neuron_lens::{NeuronLens, neuron_lens};
pub use observer::{Activity, Control, LayerActivity};
pub use perplexity::{Perplexity, perplexity};
pub use recall::{LayerRecall, Recall, recall};
pub use route_prices::{DROP, NEAR, RoutePrice, priced_preferences, route_prices};
pub use score::{Method, Phase};
pub use skip_scores::{SkipPrice, SkipScore, SkipSetup, skip_prices};
pub use statistics::{Estimate, Percentiles};
pub use sweep::{SweepPoint, SweepSetup, sweep};
pub use switching_off::{SwitchingOff, switching_off};
pub use token_firing::{FiringNeuron, TokenFiring, token_firing};
pub use token_neurons::token_neurons;
