//! The neurons that fire, and the hot neurons. The [`panel`] shows a [`watched`] model: a [`map`]
//! of one token, [text](below) below it, and [`figures`] beside it.
//!
//! The levels of dots are computed without a window: [`mode`], [`layer_values`], [`order`],
//! [`grid`] and [`atlas`]. They come from a [`plane`] of bytes, either on the device by a
//! [`shader`] with [`map_textures`], or on the CPU.
//!
//! Around the map are [`playback`], [`history`], the [`search`] for neurons by a word, [`tint`],
//! [`facts`], buttons for [switching neurons off](switching_off), and the [`expert_borders`].
//! [`pins`] are pinned neurons. A pin has a [card](pin_card), a [`lens`] on the words that it
//! raises, and its words [across chats](across_chats). [`cost`] is the cost of recording, and
//! [`kind`] is the kind of a model's neurons.
//!
//! The user [saves](saving) a [card](picture_card) or an [`animation`]. A card has a [copy of the
//! map](map_snapshot) and the token in its [`sentence`], drawn on a [`canvas`]. A background thread
//! [writes](export) the file.
//!
//! Everything reads the engine's board of neurons and never waits for it. Only what is new and
//! visible is drawn.

mod across_chats;
mod animation;
pub mod atlas;
mod below;
mod canvas;
pub mod colours;
pub mod cost;
pub mod expert_borders;
pub mod export;
pub mod facts;
pub mod figures;
pub mod grid;
pub mod history;
pub mod kind;
pub mod layer_values;
mod lens;
pub mod map;
mod map_snapshot;
pub mod map_textures;
pub mod mode;
pub mod order;
pub mod panel;
mod picture_card;
pub mod pin_card;
pub mod pins;
pub mod plane;
pub mod playback;
mod saving;
mod search;
mod sentence;
pub mod shader;
mod switching_off;
#[cfg(test)]
mod tests;
pub mod tint;
mod watched;

pub use panel::NeuronsPanel;
pub use tint::{NeuronMarks, PatchTint, RingedNeurons, Tint};
