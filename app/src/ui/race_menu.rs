//! Races, in the menu of the mode: the last answer once more in two modes, or with two VRAM budgets, one after the other.

use egui::{DragValue, Id, Ui};
use thermocline_engine::{
    Error,
    session::{DeviceStatus, Engine, SparsityChoice},
};

use super::{
    command::Command,
    shell::Shell,
    top_bar::about,
    vram::{self, BudgetRoom},
    widgets,
};
use crate::{
    chat::{Side, SideModel},
    library::ModelId,
    units::{bytes, parse_bytes},
};

/// Offers the races of the open model.
pub fn show(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    modes(ui, shell, engine.sparsity().asked);
    budgets(ui, shell, model, engine);
}

/// The mode in use against another one.
fn modes(ui: &mut Ui, shell: &mut Shell, asked: SparsityChoice) {
    ui.separator();
    widgets::muted(ui, "Race against this mode, with the last answer:");
    ui.horizontal_wrapped(|ui| {
        for choice in SparsityChoice::ALL.into_iter().filter(|choice| *choice != asked) {
            let (name, what) = about(choice);
            let button = ui.button(name).accessible_name(format!("Race against {name}"));
            if button.on_hover_text(format!("{what}. One after the other, with the same seed")).clicked() {
                let side = |choice| Side { title: about(choice).0.to_owned(), model: SideModel::Mode(choice) };
                shell.queue_command(Command::Compare([side(asked), side(choice)]));
                ui.close();
            }
        }
    });
}

/// The budget in force against another one, where a device computes or would with more memory; else the reason why not.
fn budgets(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    let why_not = match engine.device() {
        DeviceStatus::Gpu(_) => None,
        DeviceStatus::Cpu { reason: Some(reason) } if matches!(*reason, Error::Memory { .. }) => None,
        DeviceStatus::Cpu { reason } => Some(vram::why_cpu(shell, reason.as_deref())),
        DeviceStatus::Loading(_) => Some("The model is being loaded into the GPU.".to_owned()),
        DeviceStatus::Lost { .. } => Some("The GPU was lost; it is tried again soon.".to_owned()),
    };
    if let Some(why) = why_not {
        widgets::muted(ui, format!("Two VRAM budgets cannot be raced. {why}"));
        return;
    }
    let Some(room) = BudgetRoom::of(shell, model, engine) else { return };
    let now = room.budget(None);
    let label = widgets::muted(ui, format!("Race against this VRAM budget, {}, with the last answer:", bytes(now))).id;
    let kept = Id::unique("the other budget of a race");
    let mut other: f64 = ui.data(|data| data.get_temp(kept)).unwrap_or((now / 2) as f64);
    ui.horizontal(|ui| {
        let field = DragValue::new(&mut other)
            .range(0.0..=room.most as f64)
            .speed(room.most as f64 / 200.0)
            .custom_formatter(|value, _| bytes(value as u64))
            .custom_parser(|text| parse_bytes(text.trim()).ok().map(|bytes| bytes as f64));
        if ui.add(field).labelled_by(label).changed() {
            ui.data_mut(|data| data.insert_temp(kept, other));
        }
        let other = other as u64;
        let button =
            ui.add_enabled(other != now, egui::Button::new("Race")).accessible_name("Race against this budget");
        if button
            .on_hover_text("One after the other, with the same seed; this budget is in force again afterwards")
            .clicked()
        {
            let side =
                |budget| Side { title: format!("With {} of VRAM", bytes(budget)), model: SideModel::Budget(budget) };
            shell.queue_command(Command::Compare([side(now), side(other)]));
            ui.close();
        }
    });
}

#[cfg(test)]
mod tests {
    use egui::{Key, accesskit::Role};

    use crate::ui::{testing::TestWindow, vram::tests::on_gpu};

    /// Opens the menu of the mode once there is an answer.
    fn menu(stage: &mut TestWindow) {
        stage.write("Message", "Tell me a story about a dog.");
        stage.press(Key::Enter);
        stage.answered();
        let mode = stage.shell().engine_handle.engine().unwrap().sparsity().mode;
        stage.click(&mode.to_string());
    }

    #[test]
    fn race_of_two_budgets_is_not_offered_without_a_gpu_and_says_why() {
        let mut stage = TestWindow::new([1440.0, 900.0]);
        stage.ready();
        menu(&mut stage);
        assert!(stage.shows("Two VRAM budgets cannot be raced. The CPU computes everything."), "{:?}", stage.texts());
        assert!(!stage.has(Role::Button, "Race against this budget"));
    }

    #[test]
    fn race_of_two_budgets_shows_both_answers_and_restores_the_budget() {
        let mut stage = on_gpu();
        let engine = stage.shell().engine_handle.engine().unwrap();
        engine.set_vram_budget(24 << 20).unwrap();
        menu(&mut stage);
        stage.click("Race against this budget");
        stage.until("both answers", |window| window.conversation.is_compared());
        assert!(stage.shows("With 24.0 MiB of VRAM") && stage.shows("With 12.0 MiB of VRAM"), "{:?}", stage.texts());
        let mut lines = stage.texts();
        lines.retain(|text| text.starts_with("Per token "));
        assert!(lines.len() >= 3, "the answer and both sides: {lines:?}");
        assert!(["Marked: the first word that differs", "No word differs."].iter().any(|it| stage.shows(it)));
        assert_eq!(engine.vram_budget(), Some(24 << 20));
        assert!(!stage.shell().is_comparing());
    }
}
