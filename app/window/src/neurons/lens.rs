//! The lens of a pinned neuron: the words that it raises and lowers. A background thread reads them
//! from the model's weights.

use egui::{Label, Ui};
use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    model::NeuronIndex,
    session::Engine,
};

use super::{facts::quoted, pins::Pins};
use thermocline_chats::chat::NeuronWords;
use thermocline_host::engine_handle::error_message;
use thermocline_rich_text::{
    background::Background,
    theme::Palette,
    widgets::{muted, small},
};

/// The sentences about a neuron's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lens {
    /// The words are being read.
    #[default]
    Unknown,
    /// The words whose logits the neuron raises and lowers most.
    Known {
        /// The sentence about the raised words.
        raised: String,
        /// The sentence about the lowered words.
        lowered: String,
    },
    /// A sentence about why the words cannot be read.
    Failed(String),
}

impl Lens {
    fn of(words: &NeuronWords) -> Self {
        let list = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join("  ");
        Lens::Known {
            raised: format!("Raises {}", list(&words.raised)),
            lowered: format!("Lowers {}", list(&words.lowered)),
        }
    }

    /// Shows the sentences.
    pub fn show(&self, ui: &mut Ui) {
        match self {
            Lens::Unknown => _ = muted(ui, "Computing the words it raises …"),
            Lens::Failed(why) => _ = ui.add(Label::new(small(why, Palette::of(ui).bad)).wrap()),
            Lens::Known { raised, lowered } => {
                let hint = "Computed through the model's head for a positive activation. A negative activation has the opposite effect.";
                muted(ui, raised).on_hover_text(hint);
                muted(ui, lowered).on_hover_text(hint);
            }
        }
    }
}

/// Reads the words of pinned neurons, one neuron at a time.
#[derive(Debug, Default)]
pub struct LensReader(Background<(NeuronIndex, Lens)>);

impl LensReader {
    /// Hands the found words to `pins`, and starts to read the words of the next neuron.
    pub fn update(&mut self, ui: &Ui, engine: &Engine, pins: &mut Pins) {
        if let Some((place, lens)) = self.0.take()
            && let Some(pin) = pins.at(place)
        {
            pin.lens = lens;
        }
        let Some(place) = pins.unread().filter(|_| !self.0.is_busy()) else { return };
        let engine = engine.clone();
        let read = move || {
            // One thread only, because the model uses the others.
            let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
            let words = cpu.and_then(|cpu| NeuronWords::of(&engine, &cpu, place));
            let lens = words.map_or_else(|error| Lens::Failed(error_message(&error)), |words| Lens::of(&words));
            (place, lens)
        };
        if let Err(error) = self.0.start(ui, read)
            && let Some(pin) = pins.at(place)
        {
            pin.lens = Lens::Failed(error);
        }
    }
}
