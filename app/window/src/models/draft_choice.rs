//! The draft model of a model, chosen on its card. It takes effect when the model is next opened.

use egui::{ComboBox, Role, Ui, WidgetInfo};
use thermocline_engine::session::Engine;

use crate::{command::Command, shell::Shell};
use thermocline_host::{
    library::{AssistantCard, ModelCard, ModelId},
    units::bytes,
};
use thermocline_rich_text::widgets;

const HELP: &str = "A small model, or an assistant, that proposes several tokens at a time. The model checks them together, which is faster \
    if most of them are right. It needs memory for both.";

/// The choice of no draft model.
const NONE: &str = "None";

/// The files that may draft for a model.
#[derive(Debug, Clone, Copy)]
pub struct Drafters<'c> {
    /// All models.
    pub models: &'c [ModelCard],
    /// All assistants.
    pub assistants: &'c [AssistantCard],
}

/// A choice in the list.
struct DraftOption<'c> {
    id: &'c ModelId,
    bytes: u64,
}

impl<'c> Drafters<'c> {
    /// The drafters that can draft for the model of `card`.
    fn of(self, card: &ModelCard) -> Vec<DraftOption<'c>> {
        let models = self.models.iter().filter(|other| other.drafts_for(card));
        let assistants = self.assistants.iter().filter(|other| other.drafts_for(card));
        let assistants = assistants.map(|it| DraftOption { id: &it.id, bytes: it.bytes });
        models.map(|it| DraftOption { id: &it.id, bytes: it.bytes }).chain(assistants).collect()
    }
}

/// Shows the choice for the card's model, among the `drafters` that fit it. `title` is the model's
/// display name. `open` is its engine if it is open. Shows nothing if there is no choice.
pub fn show(
    ui: &mut Ui,
    shell: &mut Shell,
    card: &ModelCard,
    title: &str,
    drafters: Drafters<'_>,
    open: Option<&Engine>,
) {
    let before = shell.settings.models.get(&card.id.key()).and_then(|chosen| chosen.draft.clone());
    let fitting = drafters.of(card);
    if fitting.is_empty() && before.is_none() {
        return;
    }
    let mut chosen = before.clone();
    ui.horizontal(|ui| {
        ui.label("Draft model");
        let shown = before.as_deref().map_or_else(|| NONE.to_owned(), |key| ModelId::from_key(key).to_string());
        let list = ComboBox::from_id_salt("draft model").truncate().selected_text(&shown);
        let list = list.show_ui(ui, |ui| {
            ui.selectable_value(&mut chosen, None, NONE);
            for DraftOption { id, bytes: size } in fitting {
                let (key, text) = (id.key(), format!("{id}, {}", bytes(size)));
                ui.selectable_value(&mut chosen, Some(key.clone()), text).on_hover_text(key);
            }
        });
        let name = format!("Draft model of {title}");
        list.response.widget_info(|| {
            let mut info = WidgetInfo::labeled(Role::ComboBox, true, &name);
            info.current_text_value = Some(shown.clone());
            info
        });
        list.response.on_hover_text(HELP);
    });
    if chosen != before {
        shell.model_settings(&card.id).draft.clone_from(&chosen);
    }
    let Some(engine) = open else { return };
    if let Some(reason) = shell.engine_handle.draft_failure() {
        widgets::trouble(ui, format!("The draft model is not used: {reason}"));
    }
    let used = engine.draft_model().map(|draft| ModelId::Path(draft.checkpoint.path.clone()).key());
    if chosen != used {
        let text = if chosen.is_some() { "Reopen it with this draft model" } else { "Reopen it without a draft model" };
        if ui.button(text).clicked() {
            shell.queue_command(Command::ReopenModel);
        }
    }
}
