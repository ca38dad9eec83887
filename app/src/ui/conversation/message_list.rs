//! The list of a chat's messages, with what is asked of them carried out.

use egui::{Button, Rect, Role, Ui, Vec2, WidgetInfo};
use egui_material_icons::icons::ICON_ARROW_DOWNWARD;

use super::{
    Conversation, column, composer,
    context_room::ForgottenLine,
    explained::WordAct,
    message::{self, Context},
    over_limit, tool_calls,
};
use crate::{
    chat::{AnswerStats, Explanation, prompt_before},
    engine_handle::ModelState,
    store::Speaker,
    ui::{command::Command, shell::Shell, theme::Palette},
};

/// Answers whose pieces are kept ready.
const READY: usize = 256;

impl Conversation {
    /// Shows the messages, and carries out what is wanted of them.
    pub(super) fn messages(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let Some(chat) = self.chat.as_ref().map(|chat| chat.id) else { return };
        let (progress, busy) = (shell.chat_controller.progress(chat), self.busy(shell) || self.is_elsewhere(shell));
        let alive = match shell.engine_handle.state() {
            ModelState::Ready { engine, .. } => engine.stopped().is_none(),
            ModelState::Remote { .. } => true,
            _ => false,
        };
        let gone = self.branch.iter().rev().find_map(|message| AnswerStats::from_json(message.stats.as_deref()));
        let gone = progress.and_then(|progress| progress.figures.cloned()).or(gone).unwrap_or_default();
        let line = ForgottenLine::of(&self.branch, gone.forgotten_turns, gone.forgotten_tokens);
        let (mut act, mut word, mut choice, mut closed) = (None, None, None, false);
        let pending = shell.chat_controller.pending_call(chat);
        let asks = pending.filter(|pending| pending.since.is_none()).map(|pending| pending.call.id.clone());
        let focus = asks.is_some() && asks != self.asked && self.composer.text().is_empty();
        self.asked = asks;
        if focus {
            self.rows.go_to_end();
        }
        if self.blocks.len() > READY {
            self.blocks.clear();
        }
        let arrows = match ui.memory(|memory| memory.focused()) {
            None => true,
            Some(id) => id == composer::id() && self.composer.text().is_empty(),
        };
        let Conversation { branch, blocks, rows, editing, words, comparison, attaching, .. } = self;
        let (count, place) = (branch.len(), ui.max_rect());
        rows.show(ui, ("messages", chat), |ui, row| {
            let Some(message) = branch.get(row) else { return };
            let change = editing.as_mut().filter(|change| change.id == message.id);
            let own = progress.filter(|progress| progress.id == message.id);
            let (last, tint) = (row + 1 == count, shell.tint.as_deref());
            let mark = shell.mark.as_ref();
            let files = attaching.of(message.id);
            let answers = branch[..row].iter().rev().find(|above| above.speaker == Speaker::User).map(|asked| asked.id);
            let answers = answers.filter(|_| message.speaker == Speaker::Assistant && message.calls().is_empty());
            let answers = answers.or((message.speaker == Speaker::User).then_some(message.id));
            let sources = answers.map_or(&[][..], |asked| attaching.sources(asked));
            let store = &shell.store;
            let named = !branch[..row].last().is_some_and(|above| above.speaker == Speaker::Tool);
            let context =
                Context { message, progress: own, busy, named, last, alive, tint, mark, files: &files, sources, store };
            let blocks = blocks.entry(message.id).or_default();
            column(ui, |ui| {
                if let Some(line) = line.filter(|line| line.before == message.id) {
                    over_limit::line(ui, line);
                }
                ui.push_id(message.id, |ui| {
                    if let Some(view) = words.as_mut().filter(|view| view.message == message.id) {
                        word = view.show(ui, &message.content, arrows).or(word.take());
                    } else if let Some(wanted) = message::show(ui, &context, blocks, change) {
                        act = Some(wanted);
                    }
                    let compared = comparison.as_mut().filter(|view| view.message == message.id);
                    closed |= compared.is_some_and(|view| view.show(ui));
                });
                if let Some(pending) = pending.filter(|_| last) {
                    ui.add_space(8.0);
                    choice = tool_calls::pending(ui, &pending, focus);
                }
            });
        });
        if !rows.is_at_end() && to_end(ui, place) {
            rows.go_to_end();
        }
        if closed {
            self.comparison = None;
        }
        if let Some(act) = act {
            self.act(act, shell);
        }
        if let Some(act) = word {
            self.word(act, shell);
        }
        if let Some(choice) = choice {
            self.choose(choice, shell);
        }
    }

    /// Carries out what is wanted of the answer that is shown word by word.
    fn word(&mut self, act: WordAct, shell: &mut Shell) {
        let (Some(chat), Some(view)) = (&self.chat, &mut self.words) else { return };
        match act {
            WordAct::Close => self.words = None,
            WordAct::Map => shell.queue_command(Command::ShowMap),
            WordAct::Explain(at) => {
                let message = self.branch.iter().find(|message| message.id == view.message);
                let (Some(engine), Some(message)) = (shell.engine_handle.engine(), message) else { return };
                let rest = message.content.get(at..).unwrap_or_default().to_owned();
                match prompt_before(&shell.store, chat.id, view.message, at) {
                    Ok(prompt) => view.set(Explanation::start(&shell.engine_handle, engine, prompt, rest)),
                    Err(error) => shell.show_error(error),
                }
            }
        }
    }
}

/// The round button above the composer that leads to the end of the messages, which fill `place`. True if it is pressed.
fn to_end(ui: &mut Ui, place: Rect) -> bool {
    let palette = Palette::of(ui);
    let size = Vec2::splat(32.0);
    let rect = Rect::from_center_size(place.center_bottom() - Vec2::new(0.0, size.y), size);
    let glyph = ICON_ARROW_DOWNWARD.rich_text().size(16.0).color(palette.text);
    let button = Button::new(glyph).fill(palette.raised).corner_radius(size.x / 2.0).min_size(size);
    let response = ui.put(rect, button);
    response.widget_info(|| WidgetInfo::labeled(Role::Button, true, "To the end"));
    response.on_hover_text("To the end (Ctrl+End)").clicked()
}
