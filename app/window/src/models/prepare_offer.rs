//! The offer to prepare the open model, for panels that need a preparation.

use egui::Ui;

use super::preparation::{Preparation, PreparationStage};
use crate::{command::Command, shell::Shell};
use thermocline_host::{
    engine_handle::ModelState,
    library::{ModelId, is_prepared},
};
use thermocline_rich_text::widgets;

/// Shows a button that prepares the open model, or the progress. Shows nothing if the model is
/// prepared or not a file.
pub fn prepare_offer(ui: &mut Ui, shell: &mut Shell) {
    let ModelState::Ready { model: ModelId::Path(path), engine } = shell.engine_handle.state() else { return };
    let stage = shell.preparation.as_ref().map(|it| (it.path == path, it.stage()));
    match stage {
        Some((true, PreparationStage::Running(progress))) => {
            let done = progress.map_or(0.0, |progress| 100.0 * progress.done);
            widgets::muted(ui, format!("Preparing: {done:.0} % of this step. See the Models page."));
        }
        _ if is_prepared(engine.model()) => {}
        Some((true, PreparationStage::Done)) => {
            if ui.button("Reopen the prepared model").clicked() {
                shell.preparation = None;
                shell.queue_command(Command::ReopenModel);
                ui.close();
            }
        }
        stage => {
            let text = match &stage {
                Some((true, PreparationStage::Paused)) => "Continue preparing this model",
                _ => "Prepare this model",
            };
            let other = matches!(&stage, Some((false, PreparationStage::Running(_))));
            let button = ui.add_enabled(!other, egui::Button::new(text));
            let hint = "Measure which neurons fire. Takes minutes to hours. Chats keep working, but slower.";
            let button = button.on_hover_text(hint).on_disabled_hover_text("Another model is being prepared");
            if button.clicked() {
                shell.preparation = Some(Preparation::begin(ui, path));
                ui.close();
            }
        }
    }
}
