//! The words of pinned neurons across chats, as far as the user has them kept.

use egui::Context;
use thermocline_engine::{model::NeuronIndex, session::Engine, sparsity::sidecar::Identity};

use super::{facts::quoted, pins::Pins};
use crate::shell::Shell;
use thermocline_rich_text::background::Background;

/// Reads them from the store, when they or the pins have changed.
#[derive(Debug, Default)]
pub struct AcrossChats {
    /// Fingerprint of the model, read from its file beside the window.
    model: Option<String>,
    reading: Background<String>,
    /// The pins and the revision of the words that were read last.
    read: Option<(Vec<NeuronIndex>, u64)>,
}

impl AcrossChats {
    /// Fingerprint of the model, once it is known and if words are kept.
    pub fn model<'a>(&'a self, shell: &Shell) -> Option<&'a str> {
        self.model.as_deref().filter(|_| shell.settings.keep_neuron_words)
    }

    /// Gives `pins` their sentences.
    pub fn update(&mut self, ctx: &Context, shell: &mut Shell, engine: &Engine, pins: &mut Pins) {
        if !shell.settings.keep_neuron_words {
            if self.read.take().is_some() {
                pins.all.iter_mut().for_each(|pin| pin.across.clear());
            }
            return;
        }
        if self.model.is_none() {
            self.model = self.reading.take();
        }
        let Some(model) = &self.model else {
            if !self.reading.is_busy() {
                let engine = engine.clone();
                shell.toasts.check(self.reading.start(ctx, move || Identity::of_model(engine.model()).fingerprint()));
            }
            return;
        };
        let wanted = (pins.places(), shell.chat_controller.kept_words_revision());
        if self.read.as_ref() == Some(&wanted) {
            return;
        }
        for pin in &mut pins.all {
            let NeuronIndex { layer, neuron } = pin.place;
            let words = shell.toasts.check(shell.store.kept_words(model, layer, neuron)).unwrap_or_default();
            let listed: Vec<_> = words.iter().map(|it| format!("{} {}\u{d7}", quoted(&it.word), it.times)).collect();
            pin.across = match listed.is_empty() {
                true => "Across chats: no word is kept of it yet".to_owned(),
                false => format!("Across chats: {}", listed.join("  ")),
            };
        }
        self.read = Some(wanted);
    }
}
