//! The line above the page: which model, where it computes, how quick it is.

use egui::{Align, Layout, RichText, Ui};
use egui_material_icons::icons::{ICON_MEMORY, ICON_VIEW_SIDEBAR};

use super::{
    command::{Command, Page},
    shell::Shell,
    theme::Palette,
};
use crate::host::HostState;

/// Shows it.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    ui.horizontal(|ui| {
        if ui.button(ICON_VIEW_SIDEBAR).on_hover_text("Show or hide the chats").clicked() {
            shell.ask(Command::ToggleChats);
        }
        let model = match shell.host.state() {
            HostState::Empty => "No model".to_owned(),
            HostState::Opening(opening) => format!("Opening {} …", opening.model),
            HostState::Ready { model, .. } => model.to_string(),
            HostState::Failed { model, .. } => format!("{model} could not be opened"),
        };
        if ui.button(model).on_hover_text("Models").clicked() {
            shell.ask(Command::Show(Page::Models));
        }
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            if ui.button(ICON_MEMORY).on_hover_text("Show or hide the neurons").clicked() {
                shell.ask(Command::ToggleNeurons);
            }
            if let Some(engine) = shell.host.engine() {
                let rate = engine.telemetry().decode_rate;
                if rate > 0.0 {
                    ui.label(RichText::new(format!("{rate:.0} tok/s")).strong().color(Palette::of(ui).amber));
                }
            }
        });
    });
}
