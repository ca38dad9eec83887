//! The menu of what is saved of the map: a card, an animation of the last tokens, a table.

use std::sync::mpsc;

use egui::{Button, Ui};
use thermocline_engine::session::Engine;

use super::{
    animation::{Animation, MOST_FRAMES},
    export::{self, Export, Saved},
    facts,
    picture_card::{PictureCard, PictureWords},
    sentence::Sentence,
    watched::Watched,
};
use crate::{
    engine_handle::{EngineHandle, ModelState},
    units,
};

impl Watched {
    /// Shows the menu; what comes of it is sent to `saved`.
    pub(super) fn save_menu(&self, ui: &mut Ui, handle: &EngineHandle, engine: &Engine, saved: &mpsc::Sender<Saved>) {
        let drawn = self.map.is_drawn();
        let hint = "A card with the map, its legend, the model, its speed, and the token in its sentence";
        let picture = ui.add_enabled(drawn, Button::new("Save picture")).on_hover_text(hint).clicked();
        let hint = format!("The same card for the last {MOST_FRAMES} tokens, one after the other");
        let animated = !self.playback.range(&self.board).is_empty();
        let animation = ui.add_enabled(drawn && animated, Button::new("Save animation")).on_hover_text(hint).clicked();
        let table = ui.button("Save as CSV").on_hover_text("A row for every neuron").clicked();
        let export = match (picture, animation, table) {
            (true, ..) => self.picture_card(handle, engine).map(|card| Export::Picture(Box::new(card))),
            (_, true, _) => self.animation(handle, engine).map(|it| Export::Animation(Box::new(it))),
            (_, _, true) => {
                let token = self.playback.token();
                let is_hot = |layer, neuron| self.map.is_hot(layer, neuron);
                Some(Export::Table(export::table(&self.board, token.as_ref(), is_hot)))
            }
            _ => return,
        };
        if let Some(export) = export {
            export::save(ui.ctx(), export, saved.clone());
        }
        ui.close();
    }

    /// The card of the token that is shown.
    pub(super) fn picture_card(&self, handle: &EngineHandle, engine: &Engine) -> Option<PictureCard> {
        let map = self.map.snapshot()?;
        let model = match handle.state() {
            ModelState::Ready { model, .. } => model.to_string(),
            _ => String::new(),
        };
        // Between answers, that of the latest one.
        let now = Some(engine.telemetry().decode_rate).filter(|rate| *rate > 0.0);
        let rate = now.or_else(|| engine.observed_rate()).map(units::rate);
        let token = self.playback.token();
        let summary = facts::summary(self.board.shape(), token.as_ref(), map.options().placed);
        let ids = self.playback.ids(&self.board);
        let shown = |token: &u64| ids.iter().position(|(index, _)| index == token);
        let at = token.as_ref().and_then(|token| shown(&token.index));
        let only: Vec<u32> = ids.iter().map(|(_, id)| *id).collect();
        let text = |ids: &[u32]| engine.tokenizer().decode(ids, true);
        let sentence = at.map(|at| Sentence::of(&only, at, text)).unwrap_or_default();
        Some(PictureCard { map, words: PictureWords { model, rate, summary, sentence }, dot: 1 })
    }

    /// The last tokens on a card.
    pub(super) fn animation(&self, handle: &EngineHandle, engine: &Engine) -> Option<Animation> {
        let card = self.picture_card(handle, engine)?;
        let ids = self.playback.ids(&self.board).into_iter().map(|(_, id)| id).collect();
        let tokens = self.playback.last(&self.board, MOST_FRAMES);
        let engine = engine.clone();
        let text = move |ids: &[u32]| engine.tokenizer().decode(ids, true);
        (!tokens.is_empty()).then(|| Animation { card, tokens, ids, text: Box::new(text) })
    }
}
