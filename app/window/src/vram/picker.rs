//! The choice of the processor that computes.

use egui::{ComboBox, Ui};

use crate::{adapters, shell::Shell};
use thermocline_host::{engine_handle::ModelState, library::ModelId};

/// The CPU's name in the list of devices.
pub const CPU: &str = "CPU only";

/// The text of a choice in the list.
fn name_of(choice: Option<&str>, shell: &Shell) -> String {
    match choice {
        None => match shell.adapters.best() {
            Some(best) => format!("Automatic: {} if it is faster", best.name),
            None => "Automatic".to_owned(),
        },
        Some("") => CPU.to_owned(),
        Some(name) => name.to_owned(),
    }
}

/// Shows the picker if a model is open.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    let ModelState::Ready { model, .. } = shell.engine_handle.state() else { return };
    let chosen = shell.model_settings(&model).device.clone();
    ui.horizontal(|ui| {
        ui.label("Run on");
        let shown = ComboBox::new("device", "").width(ui.available_width() - 8.0).truncate();
        let shown = shown.selected_text(name_of(chosen.as_deref(), shell));
        let shown = shown.show_ui(ui, |ui| choices(ui, shell, &model));
        shown.response.on_hover_text("The processor that runs the model. Answers continue while you change it.");
    });
}

/// Shows one line per choice. A click moves the open `model` to that processor.
pub fn choices(ui: &mut Ui, shell: &mut Shell, model: &ModelId) {
    let chosen = shell.model_settings(model).device.clone();
    let (all, automatic) = (shell.adapters.list(), name_of(None, shell));
    let mut line = |ui: &mut Ui, device: Option<&str>, text: String, hint: String| {
        let line = ui.selectable_label(chosen.as_deref() == device, text);
        if !hint.is_empty() {
            line.clone().on_hover_text(hint);
        }
        if line.clicked() {
            shell.choose_device(device.map(str::to_owned));
            ui.close();
        }
    };
    line(ui, None, automatic, "Uses a GPU if the model is expected to run faster with it".to_owned());
    line(ui, Some(""), CPU.to_owned(), "No GPU is used".to_owned());
    let Some(all) = all else {
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
