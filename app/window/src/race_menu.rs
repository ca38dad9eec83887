//! The menu of races: repeats the last answer in two modes or with two VRAM budgets, one after the
//! other.

use egui::{Button, DragValue, Id, Ui};
use thermocline_engine::{
    Error,
    session::{DeviceStatus, Engine, SparsityChoice},
};

use crate::{command::Command, shell::Shell, top_bar::about, vram::BudgetRoom};
use thermocline_chats::chat::{Side, SideModel};
use thermocline_host::{
    library::ModelId,
    units::{bytes, parse_bytes},
};
use thermocline_rich_text::widgets;

/// Offers the races of the open model.
pub fn show(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    modes(ui, shell, engine);
    budgets(ui, shell, model, engine);
}

/// Offers a race of the mode in use against another mode. Modes that the model does not support, or
/// that equal the mode in use, are disabled.
fn modes(ui: &mut Ui, shell: &mut Shell, engine: &Engine) {
    let now = engine.sparsity();
    ui.separator();
    widgets::muted(ui, "Repeat the last answer in both modes. Race against:");
    ui.horizontal_wrapped(|ui| {
        for choice in SparsityChoice::ALL.into_iter().filter(|choice| *choice != now.asked) {
            let (name, what) = about(choice);
            let would = engine.sparsity_of(choice);
            let same = format!("The mode in use is already {}.", now.at_work);
            let obstacle = would.obstacle().map(widgets::sentence).or((would.at_work == now.at_work).then_some(same));
            let button = ui
                .add_enabled(obstacle.is_none(), Button::new(name))
                .accessible_name(format!("Race against {name}"))
                .on_hover_text(format!("{what}. The two answers run one after the other with the same seed."));
            if let Some(why) = obstacle {
                button.on_disabled_hover_text(why);
            } else if button.clicked() {
                let side = |choice| Side { title: about(choice).0.to_owned(), model: SideModel::Mode(choice) };
                shell.queue_command(Command::Compare([side(now.asked), side(choice)]));
                ui.close();
            }
        }
    });
}

/// Offers a race of the budget in force against another. Shown if a device computes, or would
/// compute with more memory.
fn budgets(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    let waits = match engine.device() {
        DeviceStatus::Gpu(_) => None,
        DeviceStatus::Cpu { reason: Some(reason) } if matches!(*reason, Error::Memory { .. }) => None,
        // The CPU has no budget.
        DeviceStatus::Cpu { .. } => return,
        DeviceStatus::Loading(_) => Some("You can race VRAM budgets when the model is in VRAM."),
        DeviceStatus::Lost { .. } => Some("You can race VRAM budgets when the GPU works again."),
    };
    if let Some(waits) = waits {
        widgets::muted(ui, waits);
        return;
    }
    let Some(room) = BudgetRoom::of(shell, model, engine) else { return };
    let now = room.budget(None);
    let label = widgets::muted(ui, format!("Race a VRAM budget of {} against another one:", bytes(now))).id;
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
        let button = ui.add_enabled(other != now, Button::new("Race")).accessible_name("Race against this budget");
        if button
            .on_hover_text(
                "The two answers run one after the other with the same seed. Afterwards this budget applies again.",
            )
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
    use egui::accesskit::Role;
    use egui_kittest::kittest::NodeT;

    use crate::{command::Command, testing::TestWindow, vram::tests::on_gpu};
    use thermocline_host::library::ModelId;

    /// Opens the mode menu after an answer.
    fn menu(stage: &mut TestWindow) {
        stage.ask("Tell me a story about a dog.");
        let mode = stage.shell().engine_handle.engine().unwrap().sparsity().at_work;
        stage.click(&mode.to_string());
    }

    #[test]
    fn menu_says_nothing_of_budgets_where_there_is_no_gpu() {
        let mut stage = TestWindow::opened([1440.0, 900.0]);
        menu(&mut stage);
        assert!(
            stage.shows("Repeat the last answer in both modes") && !stage.has(Role::Button, "Race against this budget")
        );
        assert!(!stage.texts().iter().any(|text| text.contains("VRAM")), "{:?}", stage.texts());
    }

    /// A SwiGLU model without preparation has one mode.
    #[test]
    fn modes_that_the_model_cannot_have_are_disabled_with_the_reason() {
        let mut stage = TestWindow::opened([1440.0, 900.0]);
        let path = ModelId::Path("../../tests/fixtures/models/llama-silu-gqa".into());
        let settings = stage.shell().model_settings(&path);
        (settings.device, settings.sparsity) = (Some(String::new()), Some("predicted".to_owned()));
        stage.command(Command::OpenModel(path.clone()));
        stage.until_open(&path);
        // The previously chosen mode is not available, so the chip shows the mode in use.
        assert!(!stage.has(Role::Button, "predicted"));
        stage.click("dense");
        let disabled = |name: &str| stage.role(Role::Button, name).accesskit_node().is_disabled();
        for (name, is_disabled) in
            [("Automatic", false), ("Dense", false), ("Exact", true), ("Predicted", true), ("Threshold", true)]
        {
            assert_eq!(disabled(name), is_disabled, "{name}");
            if name != "Predicted" {
                assert!(disabled(&format!("Race against {name}")), "{name}: nothing else than dense is at work");
            }
        }
        stage.role(Role::Button, "Exact").hover();
        stage.appears("No neuron is ever silent with silu");
    }

    #[test]
    fn race_of_two_budgets_shows_both_answers_and_restores_the_budget() {
        let (mut stage, engine) = on_gpu();
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
