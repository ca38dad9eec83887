//! What the user may choose about the window, and the list of keys.

use egui::Ui;

use super::shell::Shell;

/// The page.
#[derive(Debug, Default)]
pub struct PreferencesPage {}

impl PreferencesPage {
    /// Shows it.
    pub fn show(&mut self, ui: &mut Ui, _shell: &mut Shell) {
        ui.heading("Settings");
    }
}
