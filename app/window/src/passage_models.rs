//! The embedding model that finds passages of attached files, chosen in the settings or found in
//! the library.

use egui::{ComboBox, Role, Ui, WidgetInfo};

use crate::shell::Shell;
use thermocline_host::{
    library::{ModelCard, ModelId},
    units::bytes,
};
use thermocline_rich_text::widgets;

const AUTOMATIC: &str = "Automatic";
const WORDS: &str = "Words only";
const HELP: &str = "If an attached file is longer than the free context, the model gets the passages that fit the question. \
    An embedding model finds passages that mean the same in other words. Without one, passages are found by their words.";

/// An embedding model of the library.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EmbeddingModel {
    id: ModelId,
    bytes: u64,
}

/// The embedding models of the library.
#[derive(Debug, Default)]
pub struct PassageModels {
    /// True once files or the settings need the library.
    pub wanted: bool,
    /// Revision of the library at the last look.
    revision: u64,
    /// The smallest first.
    models: Vec<EmbeddingModel>,
}

impl PassageModels {
    /// Takes over the embedding models among `cards`, if the library has another revision now.
    pub fn follow(&mut self, cards: &[ModelCard], revision: u64) {
        if self.revision == revision {
            return;
        }
        self.revision = revision;
        let embeds = cards.iter().filter(|card| card.embeds);
        self.models = embeds.map(|card| EmbeddingModel { id: card.id.clone(), bytes: card.bytes }).collect();
        self.models.sort_by_key(|model| model.bytes);
    }

    /// The model of a choice: `None` for any model, an empty key for none.
    fn chosen(&self, choice: Option<&str>) -> Option<ModelId> {
        match choice {
            Some("") => None,
            Some(key) => Some(ModelId::from_key(key)),
            None => self.models.first().map(|model| model.id.clone()),
        }
    }
}

impl Shell {
    /// Lets the chosen embedding model rank passages.
    pub fn choose_passage_model(&self) {
        let chosen = self.passage_models.chosen(self.settings.passage_model.as_deref());
        self.chat_controller.meaning().set_model(chosen.as_ref());
    }
}

/// Shows the choice.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    shell.passage_models.wanted = true;
    let models = &shell.passage_models.models;
    let automatic = match models.first() {
        Some(model) => format!("{AUTOMATIC} ({})", model.id),
        None => format!("{AUTOMATIC} (no embedding model found)"),
    };
    let before = shell.settings.passage_model.clone();
    let shown = match before.as_deref() {
        None => automatic.clone(),
        Some("") => WORDS.to_owned(),
        Some(key) => ModelId::from_key(key).to_string(),
    };
    let mut chosen = before.clone();
    ui.horizontal(|ui| {
        ui.label("Find passages by");
        let list = ComboBox::from_id_salt("passage model").truncate().selected_text(&shown);
        let list = list.show_ui(ui, |ui| {
            ui.selectable_value(&mut chosen, None, automatic);
            ui.selectable_value(&mut chosen, Some(String::new()), WORDS);
            for EmbeddingModel { id, bytes: size } in models {
                let (key, text) = (id.key(), format!("{id}, {}", bytes(*size)));
                ui.selectable_value(&mut chosen, Some(key.clone()), text).on_hover_text(key);
            }
        });
        list.response.widget_info(|| {
            let mut info = WidgetInfo::labeled(Role::ComboBox, true, "Find passages by");
            info.current_text_value = Some(shown.clone());
            info
        });
    });
    if chosen != before {
        shell.settings.passage_model = chosen;
    }
    widgets::muted(ui, HELP);
}
