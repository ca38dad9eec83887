//! Memory of the GPU: how much may be taken, what it is taken for.

use egui::Ui;

use super::shell::Shell;

/// The budget and what it buys.
#[derive(Debug, Default)]
pub struct VramPanel {}

impl VramPanel {
    /// Shows it.
    pub fn show(&mut self, ui: &mut Ui, _shell: &mut Shell) {
        ui.heading("VRAM budget");
    }
}
