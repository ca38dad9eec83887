//! What is said in one chat.

use egui::Ui;

use super::{command::Command, shell::Shell};

/// The chat that is shown, and answers that are being written in any chat.
#[derive(Debug, Default)]
pub struct Conversation {}

impl Conversation {
    /// Takes what the engine has said since, also while the window is hidden.
    pub fn tick(&mut self, _shell: &mut Shell) {}

    /// Does what is asked of the conversation.
    pub fn obey(&mut self, _command: &Command, _shell: &mut Shell) {}

    /// Shows messages and composer.
    pub fn show(&mut self, ui: &mut Ui, _shell: &mut Shell) {
        ui.label("Conversation");
    }
}
