//! The notice above the messages about a model that could not be opened, or was closed.

use egui::{Label, Panel, RichText, Ui};

use super::column;
use crate::{
    command::{Command, Page},
    shell::Shell,
};
use thermocline_host::engine_handle::ModelState;
use thermocline_rich_text::theme::Palette;

/// After a model has failed, says why no model is open and what the user can do.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    let ModelState::Failed { model, failure, reason } = shell.engine_handle.state() else { return };
    let panel = Panel::top("model that failed").resizable(false).show_separator_line(false).frame(egui::Frame::NONE);
    panel.show(ui, |ui| {
        column(ui, |ui| {
            // A model's name keeps the case of its first letter.
            let why = RichText::new(format!("{model} {failure}: {reason}")).color(Palette::of(ui).bad);
            ui.add(Label::new(why).wrap());
            ui.horizontal(|ui| {
                if ui.button(failure.remedy()).clicked() {
                    shell.queue_command(Command::ReopenModel);
                }
                if ui.button("Choose a model").clicked() {
                    shell.queue_command(Command::Show(Page::Models));
                }
            });
        });
    });
}
