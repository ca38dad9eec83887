//! The column of chats.

use egui::Ui;

use super::{command::Command, shell::Shell};

/// The list.
#[derive(Debug, Default)]
pub struct ChatsPanel {}

impl ChatsPanel {
    /// Reads the list again when the store has changed.
    pub fn tick(&mut self, _shell: &mut Shell) {}

    /// Puts the cursor into the search field.
    pub fn focus_search(&mut self) {}

    /// Shows it.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        ui.heading("Thermocline");
        if ui.button("New chat").clicked() {
            shell.ask(Command::NewChat);
        }
    }
}
