//! The budget slider, and what a budget would give.

use egui::{Slider, Ui};
use thermocline_engine::{placement::Forecast, session::Engine};

use super::{
    bar,
    room::BudgetRoom,
    speed::{Speed, speed_of},
};
use crate::shell::Shell;
use thermocline_chats::settings::VramBudget;
use thermocline_host::{
    engine_handle,
    library::ModelId,
    units::{bytes, parse_bytes},
};
use thermocline_rich_text::widgets;

/// Shows the two kinds of budget and the slider.
pub fn show(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine, room: BudgetRoom) {
    let mut choice = room.choice(shell, model);
    ui.horizontal(|ui| {
        let most = matches!(choice, VramBudget::AtMost(_));
        let limit = choice.limit(room.can_have);
        if ui.selectable_label(most, "Use at most").clicked() && !most {
            choice = VramBudget::AtMost(limit.min(room.most));
            commit(shell, model, engine, choice, room);
        }
        if ui.selectable_label(!most, "Leave free").clicked() && most {
            choice = VramBudget::LeaveFree(room.can_have.saturating_sub(limit));
            commit(shell, model, engine, choice, room);
        }
    });
    let (name, value) = match choice {
        VramBudget::AtMost(value) => ("VRAM to use at most", value),
        VramBudget::LeaveFree(value) => ("VRAM to leave free", value),
    };
    // Snaps to the grid in the first frame. Otherwise the slider would move by itself in the
    // second.
    let grid = room.grid(choice);
    let mut position = grid.place(value) as f64;
    ui.horizontal(|ui| {
        ui.spacing_mut().slider_width = (ui.available_width() - 112.0).max(80.0);
        let slider = Slider::new(&mut position, grid.start as f64..=grid.end as f64)
            .step_by(grid.step as f64)
            .custom_formatter(|value, _| bytes(value as u64))
            .custom_parser(|text| parse_bytes(text.trim()).ok().map(|bytes| bytes as f64))
            .update_while_editing(false);
        // No tooltip, because it would cover the text about the budget.
        let label = ui.add(slider).accessible_name(name);
        let moved = match choice {
            VramBudget::AtMost(_) => VramBudget::AtMost(position as u64),
            VramBudget::LeaveFree(_) => VramBudget::LeaveFree(position as u64),
        };
        if label.dragged() {
            (choice, shell.vram.dragged) = (moved, Some(moved));
        } else if label.changed() || shell.vram.dragged.take().is_some() {
            (choice, shell.vram.dragged) = (moved, None);
            commit(shell, model, engine, moved, room);
        }
    });
    let least = bytes(grid.start);
    match choice {
        VramBudget::AtMost(_) => bar::ends(ui, &least, &format!("{} {}", bytes(room.most), room.end())),
        VramBudget::LeaveFree(_) => {
            bar::ends(ui, &least, &format!("{} is all VRAM, none for the model", bytes(grid.end)))
        }
    }
    words(ui, shell, model, engine, room);
}

/// Describes what the dragged budget, or the one in force, would give.
fn words(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine, room: BudgetRoom) {
    // After the drag has ended, the requested budget is in force.
    let room = BudgetRoom { now: engine.vram_budget().unwrap_or(room.now), ..room };
    let (budget, told) = (room.budget(shell.vram.dragged), room.told(room.choice(shell, model), shell.vram.dragged));
    let Some(forecast) = shell.vram.forecasts.about(ui, model, engine, budget, shell.vram.dragged.is_some()) else {
        widgets::muted(ui, format!("At {}: estimating …", bytes(told)));
        return;
    };
    let told = if forecast.budget == budget { told } else { forecast.budget };
    let speed = speed_of(shell, model, engine, &forecast);
    widgets::muted(ui, sentence(&forecast, speed, told));
    if let Some(shortage) = shortage(&forecast) {
        widgets::muted(ui, shortage);
    } else if shell.vram.dragged.is_some() {
        let moves = match (forecast.arriving, forecast.leaving) {
            (0, 0) => "No weights move.".to_owned(),
            (come, 0) => format!("{} move to VRAM.", bytes(come)),
            (0, go) => format!("{} move to RAM.", bytes(go)),
            (come, go) => format!("{} move to VRAM, {} move to RAM.", bytes(come), bytes(go)),
        };
        widgets::muted(ui, moves);
    }
}

/// Why nothing would be in VRAM, with the missing bytes.
pub fn shortage(forecast: &Forecast) -> Option<String> {
    forecast.reason.as_ref().map(|reason| widgets::sentence(engine_handle::error_message(reason)))
}

fn sentence(forecast: &Forecast, speed: Speed, told: u64) -> String {
    let (hot, all) = forecast.units();
    let percentage = 100.0 * hot as f64 / all.max(1) as f64;
    let at = format!("At {}: {}", bytes(told), speed.words());
    match (hot, forecast.plan.placement.any_resident()) {
        (0, false) => return format!("{at}, on the CPU alone."),
        (0, true) => return format!("{at}, with the attention of some layers in VRAM and all neurons in RAM."),
        _ => {}
    }
    let work = 100.0 * forecast.hot_fraction();
    let what = if forecast.plan.layers.iter().all(|layer| layer.experts) { "experts" } else { "neurons" };
    format!("{at}, {percentage:.0} % of the {what} in VRAM, doing {work:.0} % of the work.")
}

/// Stores a choice and applies it to the engine.
fn commit(shell: &mut Shell, model: &ModelId, engine: &Engine, choice: VramBudget, room: BudgetRoom) {
    shell.model_settings(model).budget = Some(choice);
    shell.toasts.check(engine.set_vram_budget(choice.limit(room.can_have)));
}
