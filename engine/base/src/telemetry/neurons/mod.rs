//! The neurons that fire, token by token. Source of the neuron map and of the boundary between hot
//! and cold.
//!
//! A [`NeuronRecorder`] writes in the thread that computes, and never waits. Any thread may read
//! the [`NeuronBoard`] at any rate. The board keeps a [`TokenTrace`] for each of the last
//! [`MOST_TOKENS`] tokens: the figures of every layer and which neurons fired ([`TokenMasks`]). It
//! keeps masks of as many of the latest tokens as fit a budget of bytes. The first request for a
//! trace builds it. A trace then never changes and is shared, so that reading it copies nothing.
//! Over all tokens the board keeps a [`LayerTally`] per layer: how often, how often recently, and
//! how long ago every neuron fired. [`curve`] describes how unequal the frequencies are. For MoE
//! layers the board also records which experts tokens choose, and how often each expert is chosen.
//! The neurons of other experts do not fire.
//!
//! Neurons that are never exactly zero (SwiGLU) fire if they are among the fewest that hold a
//! fraction of the layer's output mass: [`NeuronBoard::set_mass`]. Their strengths are unknown in
//! prompt chunks on a device. There all of them fire, and no firing is counted.
//!
//! In a pass with drafts only drawn tokens are recorded, after the draw:
//! [`NeuronRecorder::end_draft`].
//!
//! A [`Pace`] for each [`Watch`] measures the cost of recording.
//!
//! A heatmap follows [`NeuronBoard::latest`] and scrubs through [`NeuronBoard::kept`] with
//! [`NeuronBoard::token`]. It shows changes with [`TokenTrace::difference`], and colours neurons by
//! [`NeuronBoard::tally`].

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
pub use mass::MassSelection;
pub use pace::Pace;
pub use recorder::{BegunToken, NeuronRecorder};
pub use shape::{LayerNeurons, NeuronShape};
pub use strength::Strength;
pub use tally::LayerTally;
pub use trace::{Difference, LayerTrace, PicturePatch, TokenMasks, TokenTrace, neurons_of};
