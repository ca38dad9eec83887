//! The words of pinned neurons across chats, if the user lets them be stored.

use egui::Context;
use thermocline_engine::{model::NeuronIndex, session::Engine, sparsity::sidecar::Identity};

use super::{facts::quoted, pins::Pins};
use crate::shell::Shell;
use thermocline_rich_text::background::Background;

/// Reads the words from the store whenever the words or the pins have changed.
#[derive(Debug, Default)]
pub struct AcrossChats {
    /// Fingerprint of the model. A background thread reads it from the model's file.
    model: Option<String>,
    reading: Background<String>,
    /// The pins and the revision of the words at the last reading.
    read: Option<(Vec<NeuronIndex>, u64)>,
}

impl AcrossChats {
    /// Fingerprint of the model. `None` until it is known, or if words are not stored.
    pub fn model<'a>(&'a self, shell: &Shell) -> Option<&'a str> {
        self.model.as_deref().filter(|_| shell.settings.keep_neuron_words)
    }

    /// Sets the sentences of `pins`.
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
                true => "Across chats: no words recorded yet".to_owned(),
                false => format!("Across chats: {}", listed.join("  ")),
            };
        }
        self.read = Some(wanted);
    }
}
