//! The neurons: who fires, who is hot. The [`panel`] shows what is [`watched`] of a model: a [`map`] with a token to look at,
//! [words](below) below it, and [`figures`] beside it. The levels of dots are arithmetic without a window: [`mode`],
//! [`layer_values`], [`order`], [`grid`], [`atlas`]. They come from a [`plane`] of bytes, on the device by a [`shader`], which has
//! [`map_textures`] there, or on the CPU. So is what stands beside them: [`playback`], [`history`], [`pins`] with a
//! [card](pin_card), a [`lens`] on the words they raise and their words [across chats](across_chats), the [`search`] for
//! neurons by a word, [`tint`], [`facts`], buttons for [switching neurons off](switching_off), and the [`expert_borders`];
//! [`cost`] is what recording them takes, [`kind`] what a model's neurons are like. What is [saved](saving) is
//! [written](export) beside the window: a [card](picture_card) with a [copy of the map](map_snapshot) and the token in its
//! [`sentence`], drawn on a [`canvas`], or an [`animation`] of it. All of it reads the engine's board of neurons and never
//! waits for it; only what is new and visible is drawn.

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
pub use tint::{NeuronMarks, Tint};
