//! The neurons: who fires, who is hot.

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
