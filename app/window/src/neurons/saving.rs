//! The menu for saving the map: a card, an animation of the last tokens, or a table.

use std::sync::Arc;

use egui::{Button, Ui};
use thermocline_engine::session::Engine;

use super::{
    animation::{Animation, MOST_FRAMES},
    export::{self, Export, SavedFiles},
    facts,
    picture_card::{PictureCard, PictureWords},
    sentence::Sentence,
    watched::WatchedNeurons,
};
use crate::shell::Shell;
use thermocline_chats::store::StoredMessage;
use thermocline_host::{answer_stats::AnswerStats, engine_handle::ModelState, units};

/// Tokens per second of the open model `engine`: of the running answer, otherwise of the last
/// answer in the shown chat, otherwise of any chat.
pub fn rate(shell: &Shell, engine: &Engine) -> Option<f64> {
    let now = Some(engine.telemetry().decode_rate).filter(|rate| *rate > 0.0);
    now.or_else(|| answered_rate(shell)).or_else(|| engine.observed_rate())
}

/// Tokens per second of the last answer in the chat that the model wrote, from its stored
/// statistics.
fn answered_rate(shell: &Shell) -> Option<f64> {
    let ModelState::Ready { model, .. } = shell.engine_handle.state() else { return None };
    let (name, key) = (model.to_string(), model.key());
    let chat = shell.store.find_chat(shell.shown?).ok()??;
    let branch = shell.store.branch(chat.id).ok()?;
    let own = |answer: &StoredMessage| {
        let stats = AnswerStats::from_json(answer.stats.as_deref())?;
        let wrote = answer.model.as_ref() == Some(&name) && stats.writer.is_none_or(|writer| writer == key);
        Some(stats.decode_tokens_per_second).filter(|rate| wrote && *rate > 0.0)
    };
    branch.iter().rev().find_map(own)
}

impl WatchedNeurons {
    /// Shows the menu. Results are sent to `saved`.
    pub fn save_menu(&self, ui: &mut Ui, shell: &Shell, engine: &Engine, saved: &SavedFiles) {
        let drawn = self.map.is_drawn();
        let hint = "A picture with the map, its legend, the model, its speed, and the sentence around the token";
        let picture = ui.add_enabled(drawn, Button::new("Save picture")).on_hover_text(hint).clicked();
        let hint = format!("An animation of this card over the last {MOST_FRAMES} tokens");
        let animated = !self.playback.range(&self.board).is_empty();
        let animation = ui.add_enabled(drawn && animated, Button::new("Save animation")).on_hover_text(hint).clicked();
        let table = ui.button("Save as CSV").on_hover_text("A table with a row for every neuron").clicked();
        let export = match (picture, animation, table) {
            (true, ..) => self.picture_card(shell, engine).map(|card| Export::Picture(Box::new(card))),
            (_, true, _) => self.animation(shell, engine).map(|it| Export::Animation(Box::new(it))),
            (_, _, true) => {
                let token = self.playback.token();
                let is_hot = |layer, neuron| self.map.atlas.is_hot(layer, neuron);
                Some(Export::Table(export::table(&self.board, token.as_ref(), is_hot)))
            }
            _ => return,
        };
        if let Some(export) = export {
            export::save(ui.ctx(), export, Arc::clone(saved));
        }
        ui.close();
    }

    /// The card of the shown token.
    pub fn picture_card(&self, shell: &Shell, engine: &Engine) -> Option<PictureCard> {
        let map = self.map.snapshot()?;
        let model = match shell.engine_handle.state() {
            ModelState::Ready { model, .. } => model.to_string(),
            _ => String::new(),
        };
        let rate = rate(shell, engine).map(units::rate);
        let token = self.playback.token();
        let summary = facts::summary(self.board.shape(), token.as_ref(), map.options.placed);
        let ids = self.playback.ids(&self.board);
        let place = |token: &u64| ids.iter().position(|(index, _)| index == token);
        let at = token.as_ref().and_then(|token| place(&token.index));
        let only: Vec<u32> = ids.iter().map(|(_, id)| *id).collect();
        let text = |ids: &[u32]| engine.tokenizer().decode(ids, true);
        let sentence = at.map(|at| Sentence::of(&only, at, text)).unwrap_or_default();
        Some(PictureCard { map, words: PictureWords { model, rate, summary, sentence }, dot: 1 })
    }

    /// An animation of the last tokens on a card.
    pub fn animation(&self, shell: &Shell, engine: &Engine) -> Option<Animation> {
        let card = self.picture_card(shell, engine)?;
        let ids = self.playback.ids(&self.board).into_iter().map(|(_, id)| id).collect();
        let tokens = self.playback.last(&self.board, MOST_FRAMES);
        let engine = engine.clone();
        let text = move |ids: &[u32]| engine.tokenizer().decode(ids, true);
        (!tokens.is_empty()).then(|| Animation { card, tokens, ids, text: Box::new(text) })
    }
}
