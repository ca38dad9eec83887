//! The neurons: who fires, who is hot. The [`panel`] shows a [`map`] with a token to look at, and the figures beside it.
//! What dots mean is arithmetic without a window: [`mode`], [`order`], [`grid`], [`picture`], [`atlas`], [`playback`]. All
//! of it reads the engine's board of neurons and never waits for it; only what is new and visible is drawn.

pub mod atlas;
pub mod colours;
pub mod facts;
pub mod grid;
pub mod map;
pub mod mode;
pub mod order;
pub mod picture;
pub mod playback;

use egui::Ui;

use super::shell::Shell;

/// The map and its figures.
#[derive(Debug, Default)]
pub struct NeuronsPanel {}

impl NeuronsPanel {
    /// Shows it.
    pub fn show(&mut self, ui: &mut Ui, _shell: &mut Shell) {
        ui.heading("Neurons");
    }
}
