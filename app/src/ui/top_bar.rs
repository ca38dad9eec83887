//! The line above the page: which model, where it computes, what it skips, how quick it is.

use egui::{Align, Button, Layout, ProgressBar, RichText, Ui, containers::menu::MenuButton};
use egui_material_icons::icons::{ICON_MEMORY, ICON_VIEW_SIDEBAR};
use thermocline_engine::session::{DeviceStatus, Engine, SparsityChoice};

use super::{
    command::{Command, Page},
    shell::{self, Shell},
    theme::{self, Palette},
    vram::picker,
    widgets,
};
use crate::{engine_handle::ModelState, library::ModelId, units};

/// Shows it.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    ui.horizontal(|ui| {
        let chats = "Show or hide the chats";
        if ui.button(ICON_VIEW_SIDEBAR).accessible_name(chats).on_hover_text(chats).clicked() {
            shell.queue_command(Command::ToggleChats);
        }
        let state = shell.engine_handle.state();
        let model = match &state {
            ModelState::Empty => "No model".to_owned(),
            ModelState::Opening(opening) => format!("Opening {} …", opening.model),
            ModelState::Ready { model, .. } => model.to_string(),
            ModelState::Remote { model, .. } => model.name.clone(),
            ModelState::Failed { model, .. } => format!("{model} could not be opened"),
        };
        if ui.add(Button::new(model).truncate()).on_hover_text("Models").clicked() {
            shell.queue_command(Command::Show(Page::Models));
        }
        if let ModelState::Remote { model, .. } = &state {
            let palette = Palette::of(ui);
            let colour = if model.server.is_private() { palette.cold } else { palette.amber };
            let badge = RichText::new(format!("Words go to {}", model.server.host())).color(colour);
            ui.label(badge).on_hover_text(model.server.destination());
        }
        if let ModelState::Ready { model, engine } = &state {
            device_chip(ui, shell, model, engine);
            mode_chip(ui, shell, model, engine);
        }
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            let neurons = "Show or hide the neurons";
            if ui.button(ICON_MEMORY).accessible_name(neurons).on_hover_text(neurons).clicked() {
                shell.queue_command(Command::ToggleNeurons);
            }
            if let ModelState::Ready { engine, .. } = &state {
                let rate = engine.telemetry().decode_rate;
                if rate > 0.0 {
                    let text = RichText::new(units::rate(rate)).font(theme::strong(14.0));
                    ui.label(text.color(Palette::of(ui).amber)).on_hover_text("Tokens per second, lately");
                }
            }
        });
    });
}

fn device_chip(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    let palette = Palette::of(ui);
    let (text, colour, hint) = match engine.device() {
        DeviceStatus::Cpu { reason: None } => {
            ("CPU".to_owned(), palette.text, "The CPU computes everything".to_owned())
        }
        DeviceStatus::Cpu { reason: Some(reason) } => ("CPU".to_owned(), palette.text, widgets::sentence(reason)),
        DeviceStatus::Loading { done, total } => {
            let fraction = if total == 0 { 0.0 } else { done as f32 / total as f32 };
            ui.add(ProgressBar::new(fraction).desired_width(96.0).text(format!("Loading {:.0} %", fraction * 100.0)));
            ui.request_repaint_after(shell::pace(ui));
            return;
        }
        DeviceStatus::Gpu(memory) => {
            let whole = engine.resident().is_some_and(|it| it.first_layer == 0 && it.head);
            let cpu = if whole { "" } else { " + CPU" };
            (format!("{}{cpu}", memory.adapter), palette.text, format!("Computed by {}{cpu}", memory.adapter))
        }
        DeviceStatus::Lost { adapter, reason } => {
            ("GPU lost".to_owned(), palette.bad, widgets::sentence(format!("{adapter} was lost: {reason}")))
        }
    };
    let chosen = shell.model_settings(model).device.clone();
    let mut chosen_device = None;
    let button = MenuButton::from_button(Button::new(RichText::new(text).color(colour)).truncate());
    let (response, _) = button.ui(ui, |ui| picker::choices(ui, shell, chosen.as_deref(), &mut chosen_device));
    response.on_hover_text(hint);
    if let Some(device) = chosen_device {
        shell.choose_device(device);
    }
}

/// Explanation of a sparsity mode.
fn about(choice: SparsityChoice) -> (&'static str, &'static str) {
    match choice.name() {
        "dense" => ("Dense", "Every neuron is computed"),
        "exact" => ("Exact", "Neurons whose gate is silent are skipped; answers stay the same"),
        "predicted" => {
            ("Predicted", "Predictors rule neurons out before anything is computed; quickest, an approximation")
        }
        "threshold" => ("Threshold", "Neurons that say little are skipped, also without ReLU; an approximation"),
        _ => ("Automatic", "The quickest that loses next to nothing"),
    }
}

/// Levels of input sparsity of a prepared model, each with what it costs; choosing one opens the model again.
fn input_levels(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    let weights = &engine.model().weights;
    if weights.input_figures.is_empty() {
        return;
    }
    ui.separator();
    let now = weights.input_level;
    let mut chosen = None;
    if ui.selectable_label(now.is_none(), "Keep small inputs").clicked() && now.is_some() {
        chosen = Some(None);
    }
    for figures in &weights.input_figures {
        let level = figures.level as f32;
        let label = format!("Skip small inputs: {:.0} %", 100.0 * figures.level);
        let this = now.is_some_and(|now| (now - level).abs() < 1e-3);
        let cost = format!(
            "With Threshold, for all layers; with Exact and Predicted, for attention. Measured {}",
            figures.cost()
        );
        if ui.selectable_label(this, label).on_hover_text(cost).clicked() && !this {
            chosen = Some(Some(level));
        }
    }
    if let Some(level) = chosen {
        let settings = shell.model_settings(model);
        settings.level = level;
        if level.is_some() && settings.sparsity.as_deref().is_none_or(|mode| mode == "auto" || mode == "dense") {
            settings.sparsity = Some("threshold".to_owned());
        }
        shell.open_model(model.clone());
        ui.close();
    }
}

fn mode_chip(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    let report = engine.sparsity();
    let good = Palette::of(ui).good;
    let button = MenuButton::from_button(Button::new(RichText::new(report.mode.name()).color(good)));
    let (response, _) = button.ui(ui, |ui| {
        for choice in SparsityChoice::ALL {
            let (name, what) = about(choice);
            if ui.selectable_label(report.asked == choice, name).on_hover_text(what).clicked() {
                shell.model_settings(model).sparsity = Some(choice.name().to_owned());
                let set = engine.set_sparsity(choice);
                shell.ok_or_show_error(set);
                ui.close();
            }
        }
        input_levels(ui, shell, model, engine);
        ui.separator();
        let mut adaptive = engine.adaptive();
        let check = ui.checkbox(&mut adaptive, "Follow the text");
        let hint = "Neurons that fire often lately take the places in VRAM of those that do not";
        if check.on_hover_text(hint).changed() {
            shell.model_settings(model).adaptive = Some(adaptive);
            let set = engine.set_adaptive(adaptive);
            shell.ok_or_show_error(set);
        }
    });
    response.on_hover_text(format!("Sparsity: {}", widgets::sentence(&report.reason)));
}
