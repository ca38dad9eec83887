//! The neurons: who fires, who is hot. The [`panel`] shows a [`map`] with a token to look at, [words](below) below it, and [`figures`] beside it.
//! The levels of dots are arithmetic without a window: [`mode`], [`layer_values`], [`order`], [`grid`], [`atlas`]. They come from a [`plane`] of
//! bytes, on the device by a [`shader`], which has [`map_textures`] there, or on the CPU. So is what stands beside them: [`playback`], [`history`], [`pins`] with a [card](pin_card),
//! [`tint`], [`facts`], and the [`expert_borders`]; [`cost`] is what recording them takes, [`kind`] what a
//! model's neurons are like. All of it reads the engine's board of neurons and never waits
//! for it; only what is new and visible is drawn.

pub mod atlas;
mod below;
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
pub mod map;
pub mod map_textures;
pub mod mode;
pub mod order;
pub mod panel;
pub mod pin_card;
pub mod pins;
pub mod plane;
pub mod playback;
pub mod shader;
#[cfg(test)]
mod tests;
pub mod tint;

pub use panel::NeuronsPanel;
pub use tint::Tint;
