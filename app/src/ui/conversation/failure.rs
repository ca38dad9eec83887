//! A model that could not be opened, above the messages of the chat.

use egui::{Panel, Ui};

use super::column;
use crate::{
    engine_handle::ModelState,
    ui::{
        command::{Command, Page},
        shell::Shell,
        widgets,
    },
};

/// Says why the model could not be opened, if it could not, and what can be done.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    let ModelState::Failed { model, reason } = shell.engine_handle.state() else { return };
    let panel = Panel::top("model that failed").resizable(false).show_separator_line(false).frame(egui::Frame::NONE);
    panel.show(ui, |ui| {
        column(ui, |ui| {
            widgets::trouble(ui, format!("{model} could not be opened: {reason}"));
            ui.horizontal(|ui| {
                if ui.button("Try again").clicked() {
                    shell.queue_command(Command::ReopenModel);
                }
                if ui.button("Choose a model").clicked() {
                    shell.queue_command(Command::Show(Page::Models));
                }
            });
        });
    });
}
