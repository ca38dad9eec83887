//! Models on this machine, and how to get more.

use egui::Ui;

use super::shell::Shell;

/// The page.
#[derive(Debug, Default)]
pub struct ModelsPage {}

impl ModelsPage {
    /// Follows scans, downloads and preparations.
    pub fn tick(&mut self, _ctx: &egui::Context, _shell: &mut Shell) {}

    /// Shows it.
    pub fn show(&mut self, ui: &mut Ui, _shell: &mut Shell) {
        ui.heading("Models");
    }
}
