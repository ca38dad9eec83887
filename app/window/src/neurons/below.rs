//! The text below the map: the two sides of the line (or what was skipped), the threshold of
//! firing, and why the map looks as it does.

use egui::{Align, DragValue, Layout, Ui};
use thermocline_engine::{runtime::Sparsity, session::Engine};

use super::{
    facts::{self, percent},
    kind::NeuronKind,
    map::MapOptions,
    mode::Mode,
    watched::WatchedNeurons,
};
use crate::{models::prepare_offer, shell::Shell};
use thermocline_rich_text::{
    theme::Palette,
    widgets::{self, muted},
};

impl WatchedNeurons {
    /// Shows the threshold above which neurons that are never zero count as firing.
    pub fn threshold(&self, ui: &mut Ui, shell: &mut Shell, options: MapOptions) {
        if self.kind != NeuronKind::Smooth || !matches!(options.mode, Mode::Fired | Mode::Frequency | Mode::Recency) {
            return;
        }
        ui.horizontal_wrapped(|ui| {
            let label = muted(ui, "Fired: the fewest neurons that carry").id;
            let field = DragValue::new(&mut shell.settings.heatmap.mass_percent).range(50..=99).suffix(" %");
            let hint = "Fraction of the layer's output mass. Applies from the next token on.";
            ui.add(field).labelled_by(label).on_hover_text(hint);
            muted(ui, "of the layer's output mass");
        });
    }

    /// Shows the legend of the two sides of the line. Without a device, shows what the token fired
    /// and skipped.
    pub fn sides(&self, ui: &mut Ui, engine: &Engine, options: MapOptions) {
        let palette = Palette::of(ui);
        if options.mode == Mode::Tiers {
            if let Some(text) = facts::tiers(&self.map.atlas) {
                muted(ui, text);
            }
            return;
        }
        if !options.placed {
            self.spared(ui, engine);
            return;
        }
        let fraction = self.map.atlas.hot as f64 / self.board.shape().total().max(1) as f64;
        ui.horizontal(|ui| {
            ui.label(widgets::small(format!("in VRAM, {}", percent(fraction)), palette.hot));
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                ui.label(widgets::small(format!("in RAM, {}", percent(1.0 - fraction)), palette.cold));
                if !options.by_frequency {
                    muted(ui, "mixed, in the model's order");
                }
            });
        });
    }

    /// Shows how many neurons the token fired and how many were skipped.
    fn spared(&self, ui: &mut Ui, engine: &Engine) {
        let Some(token) = self.playback.token() else { return };
        let palette = Palette::of(ui);
        let total = token.total();
        let fired = f64::from(total.fired) / self.board.shape().total().max(1) as f64;
        let skips = engine.sparsity().at_work != Sparsity::Dense || total.experts.is_some();
        let (fired, silent) = (percent(fired), percent(1.0 - fired));
        let active = match self.board.mass() {
            Some(mass) => format!("{fired} of the neurons carry {} of the output", percent(mass.into())),
            None => format!("fired, {fired}"),
        };
        ui.horizontal(|ui| {
            ui.label(widgets::small(active, palette.hot));
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                let text = match (skips, self.kind) {
                    (true, NeuronKind::Smooth) => "the weakest are skipped".to_owned(),
                    (true, _) => format!("skipped, {silent}"),
                    (false, _) => "every neuron is computed".to_owned(),
                };
                ui.label(widgets::small(text, palette.cold));
            });
        });
    }

    /// Explains why the map is dark or incomplete.
    pub fn hint(&self, ui: &mut Ui, shell: &mut Shell, options: MapOptions) {
        if self.playback.is_remembered() {
            muted(ui, "The last tokens of this chat, from the saved recording.");
        }
        if self.map.greyed {
            muted(ui, "Grey: recorded before the VRAM contents changed.");
        }
        let prompt = self.playback.token().is_some_and(|token| !token.decoded);
        if self.kind == NeuronKind::Smooth
            && options.placed
            && prompt
            && !matches!(options.mode, Mode::Placement | Mode::Tiers)
        {
            let text = "For a prompt, the GPU does not report how strongly neurons fire. All neurons that it computes are \
                shown as firing.";
            muted(ui, text);
        } else if let Some(sentence) = self.kind.sentence(options.mode) {
            muted(ui, sentence);
        }
        let token = self.playback.token();
        let masks = token.as_ref().and_then(|token| token.masks.as_ref());
        let text = match (&token, options.mode) {
            (None, _) if options.placed => {
                "The GPU computes the neurons in VRAM, and the CPU computes the neurons in RAM. Send a message to see which \
                neurons fire."
            }
            (None, _) => {
                "Neurons that do not fire for a token can be skipped, so a model runs fast without a GPU. Send a message to \
                see which neurons fire."
            }
            (Some(_), _) if masks.is_none() => "The recording of this token is no longer kept.",
            (Some(_), Mode::Strength) if masks.is_some_and(|masks| masks.strength.is_empty()) => {
                "Strength is recorded from the next token on."
            }
            (Some(_), Mode::Predictor) if masks.is_some_and(|masks| masks.predicted.is_empty()) => {
                "No predictor ran for this token."
            }
            (Some(token), Mode::Predictor) if token.total().missed.is_none() => {
                "Misses are known only if every neuron is computed."
            }
            _ => return,
        };
        muted(ui, text);
        if options.mode == Mode::Predictor && masks.is_some_and(|masks| masks.predicted.is_empty()) {
            prepare_offer(ui, shell);
        }
    }
}
