//! Choice of the processor that computes.

use egui::{ComboBox, Ui};

use crate::{adapters, shell::Shell};
use thermocline_host::engine_handle::ModelState;

/// Name of the CPU in the list of devices.
pub const CPU: &str = "CPU only";

/// The choice as a sentence of the list.
fn name_of(choice: Option<&str>, shell: &Shell) -> String {
    match choice {
        None => match shell.adapters.best() {
            Some(best) => format!("Automatic: {} if it is quicker", best.name),
            None => "Automatic".to_owned(),
        },
        Some("") => CPU.to_owned(),
        Some(name) => name.to_owned(),
    }
}

/// The picker, if a model is open.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    let ModelState::Ready { model, .. } = shell.engine_handle.state() else { return };
    let chosen = shell.model_settings(&model).device.clone();
    let mut chosen_device = None;
    ui.horizontal(|ui| {
        ui.label("Run on");
        let shown = ComboBox::new("device", "").width(ui.available_width() - 8.0).truncate();
        let shown = shown.selected_text(name_of(chosen.as_deref(), shell));
        let shown = shown.show_ui(ui, |ui| choices(ui, shell, chosen.as_deref(), &mut chosen_device));
        shown.response.on_hover_text("The processor that computes. Answers continue while it changes");
    });
    if let Some(device) = chosen_device {
        shell.choose_device(device);
    }
}

/// One line per choice; the one that is clicked goes to `chosen_device`.
pub fn choices(ui: &mut Ui, shell: &Shell, chosen: Option<&str>, chosen_device: &mut Option<Option<String>>) {
    let mut line = |ui: &mut Ui, device: Option<&str>, text: String, hint: String| {
        let line = ui.selectable_label(chosen == device, text);
        if !hint.is_empty() {
            line.clone().on_hover_text(hint);
        }
        if line.clicked() {
            *chosen_device = Some(device.map(str::to_owned));
            ui.close();
        }
    };
    line(ui, None, name_of(None, shell), "A GPU, where the model is expected to be quicker with one".to_owned());
    line(ui, Some(""), CPU.to_owned(), "No GPU is touched".to_owned());
    let Some(all) = shell.adapters.list() else {
        ui.weak("Looking for GPUs …");
        return;
    };
    if all.is_empty() {
        ui.weak("No driver offers a GPU");
    }
    for adapter in all.iter() {
        let text = format!("{} ({}, {})", adapter.name, adapters::kind(adapter.kind), adapter.backend);
        line(ui, Some(&adapter.name), text, format!("Driver {}", adapter.driver));
    }
}
