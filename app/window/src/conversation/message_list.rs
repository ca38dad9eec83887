//! The list of a chat's messages. Carries out their actions.

use egui::{Button, Rect, Role, Ui, Vec2, WidgetInfo};
use egui_material_icons::icons::ICON_ARROW_DOWNWARD;

use super::{
    Conversation, column, composer,
    context_room::ForgottenLine,
    explained::WordAct,
    message::{self, MessageContext},
    message_action::MessageAction,
    opened_picture::{self, PictureAct},
    over_limit,
    tool_calls::{self, ToolCallChoice},
    writer,
};
use crate::{command::Command, shell::Shell};
use thermocline_chats::{
    chat::{AnsweredWord, Explanation, PendingCall, prompt_before},
    store::Speaker,
};
use thermocline_host::{answer_stats::AnswerStats, engine_handle::ModelState};
use thermocline_rich_text::theme::Palette;

/// Maximum number of answers whose blocks are cached.
const READY: usize = 256;

/// A request of the user for a shown message.
#[derive(Default)]
struct ListActs {
    message: Option<MessageAction>,
    word: Option<WordAct>,
    picture: Option<PictureAct>,
    choice: Option<ToolCallChoice>,
    closes_comparison: bool,
}

impl Conversation {
    /// Shows the messages and carries out their actions.
    pub(super) fn messages(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let Some(chat) = self.chat.as_ref().map(|chat| chat.id) else { return };
        let (progress, busy) = (shell.chat_controller.progress(chat), self.busy(shell) || self.is_elsewhere(shell));
        let state = shell.engine_handle.state();
        let alive = can_answer(&state);
        let gone = self.branch.iter().rev().find_map(|message| AnswerStats::from_json(message.stats.as_deref()));
        let gone = progress.and_then(|progress| progress.figures.cloned()).or(gone).unwrap_or_default();
        let line = ForgottenLine::of(&self.branch, gone.forgotten_turns, gone.forgotten_tokens);
        let mut acts = ListActs::default();
        let pending = shell.chat_controller.pending_call(chat);
        let focus = self.asks_anew(pending);
        if self.blocks.len() > READY {
            self.blocks.clear();
        }
        let arrows = self.has_arrow_keys(ui);
        let engine = shell.engine_handle.engine();
        let Conversation { branch, blocks, rows, editing, words, picture, comparison, attaching, thumbnails, .. } =
            self;
        let (count, place) = (branch.len(), ui.max_rect());
        rows.show(ui, ("messages", chat), |ui, row| {
            let Some(message) = branch.get(row) else { return };
            let change = editing.as_mut().filter(|change| change.id == message.id);
            let own = progress.filter(|progress| progress.id == message.id);
            let (last, tint) = (row + 1 == count, shell.marks.tint.as_deref());
            let mark = shell.marks.mark.as_ref();
            let files = attaching.of(message.id);
            let answers = branch[..row].iter().rev().find(|above| above.speaker == Speaker::User).map(|asked| asked.id);
            let answers = answers.filter(|_| message.speaker == Speaker::Assistant && message.calls().is_empty());
            let answers = answers.or((message.speaker == Speaker::User).then_some(message.id));
            let sources = answers.map_or(&[][..], |asked| attaching.sources(asked));
            let ranking = answers.and_then(|asked| attaching.ranking(asked));
            let named = !branch[..row].last().is_some_and(|above| above.speaker == Speaker::Tool);
            let is_answer = message.speaker == Speaker::Assistant && own.is_none();
            let unexplained = is_answer.then(|| writer::obstacle(message, &state)).flatten();
            let context = MessageContext {
                message,
                progress: own,
                busy,
                named,
                last,
                alive,
                unexplained: unexplained.as_deref(),
                tint,
                mark,
                files: &files,
                thumbnails,
                sources,
                ranking,
                store: &shell.store,
            };
            let blocks = blocks.entry(message.id).or_default();
            column(ui, |ui| {
                if let Some(line) = line.filter(|line| line.before == message.id) {
                    over_limit::line(ui, line);
                }
                ui.push_id(message.id, |ui| {
                    if let Some(view) = words.as_mut().filter(|view| view.message == message.id) {
                        acts.word = view.show(ui, &message.content, arrows).or(acts.word.take());
                    } else if let Some(wanted) = message::show(ui, &context, blocks, change) {
                        acts.message = Some(wanted);
                    }
                    let arrows = arrows && words.is_none();
                    acts.picture =
                        opened_picture::below(ui, picture, &context, engine.as_ref(), arrows).or(acts.picture);
                    let compared = comparison.as_mut().filter(|view| view.message == message.id);
                    acts.closes_comparison |= compared.is_some_and(|view| view.show(ui));
                });
                if let Some(pending) = pending.filter(|_| last) {
                    ui.add_space(8.0);
                    acts.choice = tool_calls::pending(ui, &pending, focus);
                }
            });
        });
        if !rows.is_at_end() && to_end(ui, place) {
            rows.go_to_end();
        }
        self.carry_out(acts, shell);
    }

    fn carry_out(&mut self, acts: ListActs, shell: &mut Shell) {
        if acts.closes_comparison {
            self.comparison = None;
        }
        if let Some(act) = acts.message {
            self.act(act, shell);
        }
        if let Some(act) = acts.word {
            self.word(act, shell);
        }
        if let Some(act) = acts.picture {
            self.act_on_picture(act, shell);
        }
        if let Some(choice) = acts.choice {
            self.choose(choice, shell);
        }
    }

    /// True if a new tool call waits for the user's consent. Its card should then get the keyboard
    /// focus.
    fn asks_anew(&mut self, pending: Option<PendingCall<'_>>) -> bool {
        let asks = pending.filter(|pending| pending.since.is_none()).map(|pending| pending.call.id.clone());
        let anew = asks.is_some() && asks != self.asked && self.composer.text.is_empty();
        self.asked = asks;
        if anew {
            self.rows.go_to_end();
        }
        anew
    }

    /// True if the arrow keys may move from word to word, because no text field uses them.
    fn has_arrow_keys(&self, ui: &Ui) -> bool {
        match ui.memory(|memory| memory.focused()) {
            None => true,
            Some(id) => id == composer::id() && self.composer.text.is_empty(),
        }
    }

    /// Closes the word view if the model that wrote the answer is no longer open.
    pub(super) fn end_words_of_another_model(&mut self, shell: &Shell) {
        let Some(view) = &self.words else { return };
        let answer = self.branch.iter().find(|message| message.id == view.message);
        if answer.is_none_or(|answer| writer::obstacle(answer, &shell.engine_handle.state()).is_some()) {
            self.words = None;
        }
    }

    /// Carries out an action of the word view.
    fn word(&mut self, act: WordAct, shell: &mut Shell) {
        let (Some(chat), Some(view)) = (&self.chat, &mut self.words) else { return };
        match act {
            WordAct::Close => self.words = None,
            WordAct::Map => shell.queue_command(Command::ShowMap),
            WordAct::Explain(word) => {
                let message = self.branch.iter().find(|message| message.id == view.message);
                let (Some(engine), Some(message)) = (shell.engine_handle.engine(), message) else { return };
                let text = message.content.get(word.clone()).unwrap_or_default().to_owned();
                let options = shell.chat_controller.chat_options(&shell.store, chat.id, view.message);
                let prompt = prompt_before(&shell.store, chat.id, view.message, word.start, engine.tower().is_some());
                match prompt.and_then(|prompt| Ok(AnsweredWord { prompt, chat: options?, text })) {
                    Ok(word) => view.explanation = Some(Explanation::start(&shell.engine_handle, engine, word)),
                    Err(error) => shell.show_error(error),
                }
            }
        }
    }
}

/// True if the open model can answer.
fn can_answer(state: &ModelState) -> bool {
    matches!(state, ModelState::Ready { .. } | ModelState::Remote { .. })
}

/// The round button above the composer that scrolls to the end of the messages. `place` is the
/// messages' rectangle. True if it is pressed.
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
