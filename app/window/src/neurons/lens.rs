//! The lens of a pinned neuron: the words that it raises and lowers, read from the model's weights beside the window.

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

/// Sentences about a neuron's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lens {
    /// The words are being read.
    #[default]
    Unknown,
    /// The words whose logits it raises and lowers most.
    Known {
        /// The sentence about those it raises.
        raised: String,
        /// The sentence about those it lowers.
        lowered: String,
    },
    /// The words cannot be read; a sentence.
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
            Lens::Unknown => _ = muted(ui, "Reading the words it raises …"),
            Lens::Failed(why) => _ = ui.add(Label::new(small(why, Palette::of(ui).bad)).wrap()),
            Lens::Known { raised, lowered } => {
                let hint =
                    "Through the model's head, where its activation is positive; a negative one turns this around.";
                muted(ui, raised).on_hover_text(hint);
                muted(ui, lowered).on_hover_text(hint);
            }
        }
    }
}

/// The reader of pinned neurons' words, one neuron at a time.
#[derive(Debug, Default)]
pub struct LensReader(Background<(NeuronIndex, Lens)>);

impl LensReader {
    /// Gives `pins` the words that were found, and begins to read those of the next one.
    pub fn update(&mut self, ui: &Ui, engine: &Engine, pins: &mut Pins) {
        if let Some((place, lens)) = self.0.take()
            && let Some(pin) = pins.at(place)
        {
            pin.lens = lens;
        }
        let Some(place) = pins.unread().filter(|_| !self.0.is_busy()) else { return };
        let engine = engine.clone();
        let read = move || {
            // One thread: the model computes with the others.
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
