//! The neurons that fire, token by token: data of the neuron map, and of the boundary between hot and cold.
//!
//! A [`NeuronRecorder`] writes, in the thread that computes; a [`NeuronBoard`] is read, by any thread at any rate. The writer
//! never waits. Of the last [`MOST_TOKENS`] tokens the board keeps a [`TokenTrace`] each: the figures of every layer, and,
//! of as many of the latest as fit a budget of bytes, which neurons fired ([`TokenMasks`]). A trace is made when it is asked for
//! first, does not change any more and is shared, so that reading one copies nothing. Of all tokens together it keeps a [`LayerTally`] per layer: how often, how
//! often lately, and how long ago every neuron fired. [`curve`] describes how unequal the frequencies are. For MoE layers the board also records which
//! experts tokens choose, and how often each is chosen; neurons of others do not fire.
//!
//! Neurons that are never exactly zero (SwiGLU) fire if they are among the fewest that hold a fraction of the layer's output mass:
//! [`NeuronBoard::set_mass`]. Where their strengths are not known, in the chunks of prompts on a device, all of them fire and none is
//! counted.
//!
//! Of a pass with drafts only the tokens that are drawn are recorded, once that is known: [`NeuronRecorder::end_draft`].
//!
//! The cost of recording is measured, too: a [`Pace`] for each [`Watch`].
//!
//! A heatmap follows [`NeuronBoard::latest`], scrubs through [`NeuronBoard::kept`] with [`NeuronBoard::token`], shows what
//! came and went with [`TokenTrace::difference`], and colours neurons by [`NeuronBoard::tally`].

mod board;
mod count;
pub mod curve;
mod draft_masks;
mod firing;
mod mass;
mod pace;
mod pending;
mod recorder;
mod ring;
mod shape;
mod strength;
mod tally;
#[cfg(test)]
mod tests;
mod token_record;
mod trace;

pub use board::{DEFAULT_BUDGET, KeptTokens, MOST_TOKENS, NeuronBoard, Watch};
pub use draft_masks::DraftMasks;
pub use firing::LayerFiring;
pub use pace::Pace;
pub use recorder::{BegunToken, NeuronRecorder};
pub use shape::{LayerNeurons, NeuronShape};
pub use strength::Strength;
pub use tally::LayerTally;
pub use trace::{Difference, LayerTrace, TokenMasks, TokenTrace, neurons_of};
