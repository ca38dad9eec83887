//! The neurons of a word or of a patch, as a table.

use egui::{Grid, Label, RichText, Ui};
use thermocline_chats::chat::NeuronWords;
use thermocline_engine::model::NeuronIndex;
use thermocline_rich_text::{theme::Palette, widgets::small};

/// A row of the table.
#[derive(Debug, Clone)]
pub struct NeuronTableRow {
    /// The neuron.
    pub place: NeuronIndex,
    /// Its part of the whole.
    pub part: String,
    /// The words that it raises and lowers, once they are known.
    pub words: Option<NeuronWords>,
}

/// Shows a table of neurons. `part` is the title of their parts.
pub fn neuron_table(ui: &mut Ui, part: &str, rows: impl Iterator<Item = NeuronTableRow>) {
    let muted = Palette::of(ui).muted;
    // Width of a column of words, beside the columns of the neuron and its part.
    let wide = ((ui.available_width() - 200.0) / 2.0).max(80.0);
    Grid::new("neurons").striped(true).spacing([16.0, 4.0]).show(ui, |ui| {
        for head in ["Neuron", part, "Raises", "Lowers"] {
            ui.label(small(head, muted));
        }
        ui.end_row();
        for NeuronTableRow { place, part, words } in rows {
            ui.label(format!("layer {}, {}", place.layer, place.neuron));
            ui.label(RichText::new(part).monospace());
            let known = words.is_some();
            let NeuronWords { raised, lowered } = words.unwrap_or_default();
            for words in [raised, lowered] {
                ui.scope(|ui| {
                    ui.set_max_width(wide);
                    ui.add(Label::new(if known { words.join(", ") } else { "…".to_owned() }).truncate());
                });
            }
            ui.end_row();
        }
    });
}
