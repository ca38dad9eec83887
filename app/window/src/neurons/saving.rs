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
use thermocline_chats::store::{Message, Store};
use thermocline_host::{
    answer_stats::AnswerStats,
    engine_handle::{EngineHandle, ModelState},
    units,
};

/// The open model and the chat that is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShownModel<'a> {
    /// The handle of `engine`.
    pub handle: &'a EngineHandle,
    /// The model.
    pub engine: &'a Engine,
    /// The chats.
    pub store: &'a Store,
    /// Number of the chat. `None`: a new one.
    pub chat: Option<i64>,
}

impl ShownModel<'_> {
    /// Tokens per second: those of the answer being written, else those of the chat's last answer, else those of any chat's.
    pub(super) fn rate(&self) -> Option<f64> {
        let now = Some(self.engine.telemetry().decode_rate).filter(|rate| *rate > 0.0);
        now.or_else(|| self.answered_rate()).or_else(|| self.engine.observed_rate())
    }

    /// Tokens per second of the last answer of the chat that the model wrote, as they were kept with it.
    fn answered_rate(&self) -> Option<f64> {
        let ModelState::Ready { model, .. } = self.handle.state() else { return None };
        let (name, key) = (model.to_string(), model.key());
        let chat = self.store.find_chat(self.chat?).ok()??;
        let branch = self.store.branch(chat.id).ok()?;
        let own = |answer: &Message| {
            let stats = AnswerStats::from_json(answer.stats.as_deref())?;
            let wrote = answer.model.as_ref() == Some(&name) && stats.writer.is_none_or(|writer| writer == key);
            Some(stats.decode_tokens_per_second).filter(|rate| wrote && *rate > 0.0)
        };
        branch.iter().rev().find_map(own)
    }
}

impl Watched {
    /// Shows the menu; what comes of it is sent to `saved`.
    pub(super) fn save_menu(&self, ui: &mut Ui, shown: ShownModel<'_>, saved: &mpsc::Sender<Saved>) {
        let drawn = self.map.is_drawn();
        let hint = "A card with the map, its legend, the model, its speed, and the token in its sentence";
        let picture = ui.add_enabled(drawn, Button::new("Save picture")).on_hover_text(hint).clicked();
        let hint = format!("The same card for the last {MOST_FRAMES} tokens, one after the other");
        let animated = !self.playback.range(&self.board).is_empty();
        let animation = ui.add_enabled(drawn && animated, Button::new("Save animation")).on_hover_text(hint).clicked();
        let table = ui.button("Save as CSV").on_hover_text("A row for every neuron").clicked();
        let export = match (picture, animation, table) {
            (true, ..) => self.picture_card(shown).map(|card| Export::Picture(Box::new(card))),
            (_, true, _) => self.animation(shown).map(|it| Export::Animation(Box::new(it))),
            (_, _, true) => {
                let token = self.playback.token();
                let is_hot = |layer, neuron| self.map.atlas.is_hot(layer, neuron);
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
    pub(super) fn picture_card(&self, shown: ShownModel<'_>) -> Option<PictureCard> {
        let map = self.map.snapshot()?;
        let model = match shown.handle.state() {
            ModelState::Ready { model, .. } => model.to_string(),
            _ => String::new(),
        };
        let rate = shown.rate().map(units::rate);
        let token = self.playback.token();
        let summary = facts::summary(self.board.shape(), token.as_ref(), map.options.placed);
        let ids = self.playback.ids(&self.board);
        let place = |token: &u64| ids.iter().position(|(index, _)| index == token);
        let at = token.as_ref().and_then(|token| place(&token.index));
        let only: Vec<u32> = ids.iter().map(|(_, id)| *id).collect();
        let text = |ids: &[u32]| shown.engine.tokenizer().decode(ids, true);
        let sentence = at.map(|at| Sentence::of(&only, at, text)).unwrap_or_default();
        Some(PictureCard { map, words: PictureWords { model, rate, summary, sentence }, dot: 1 })
    }

    /// The last tokens on a card.
    pub(super) fn animation(&self, shown: ShownModel<'_>) -> Option<Animation> {
        let card = self.picture_card(shown)?;
        let ids = self.playback.ids(&self.board).into_iter().map(|(_, id)| id).collect();
        let tokens = self.playback.last(&self.board, MOST_FRAMES);
        let engine = shown.engine.clone();
        let text = move |ids: &[u32]| engine.tokenizer().decode(ids, true);
        (!tokens.is_empty()).then(|| Animation { card, tokens, ids, text: Box::new(text) })
    }
}
