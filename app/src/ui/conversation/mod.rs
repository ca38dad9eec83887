//! The messages of one chat. [`message_list`] is the list of them, of which [`row_heights`] lays out only those that can be seen,
//! [`message`] draws one, [`blocks`] the text of an answer, [`explained`] an answer word by word with the neurons that made one,
//! [`compared`] two answers side by side, begun by [`comparing`], [`start`] the page before the first.
//!
//! [`composer`] is the field where one writes, [`composing`] fills it with the figures of the chat; [`attaching`] and [`files`] read
//! the files that go with a message, [`chips`] shows them and the sources of answers; [`context_room`] counts tokens, [`over_limit`]
//! asks where they are too many, and [`sending`] sends the message. [`tool_calls`] shows calls of tools, [`tool_choices`] carries out what the user decides
//! about them. [`chat_settings`] is what the model is told beside the messages.

mod attaching;
mod blocks;
mod chat_settings;
mod chips;
mod compared;
mod comparing;
mod composer;
mod composing;
pub mod context_room;
mod explained;
mod files;
mod message;
mod message_list;
mod over_limit;
mod row_heights;
mod sending;
mod start;
mod tool_calls;
mod tool_choices;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use egui::{CentralPanel, Key, Panel, Ui};

pub use self::composer::id as composer_id;
use self::{
    attaching::Attaching,
    blocks::Blocks,
    chat_settings::{ChatOptions, ChatSettings},
    compared::ComparisonView,
    composer::{Composer, ComposerAction},
    context_room::ContextRoom,
    explained::WordView,
    message::MessageAction,
    row_heights::RowHeights,
    start::Start,
};
use super::{command::Command, frame_pace, keyboard, models::Offers, shell::Shell};
use crate::{
    chat::SamplingOverrides,
    engine_handle::ModelState,
    library::ModelId,
    store::{Chat, ChatId, Message, MessageId, MessageState, Speaker},
};

/// A draft is kept this long after the last key.
const DRAFT: Duration = Duration::from_secs(1);

/// How often an answer that another window writes is looked at.
const ELSEWHERE: Duration = Duration::from_millis(500);

/// Widest line of text, in points: on a wide screen more than on a usual one, but never so much that the eye loses the line.
const MEASURE: egui::Rangef = egui::Rangef { min: 760.0, max: 1000.0 };

/// Fraction of a wide page that text takes.
const MEASURE_FRACTION: f32 = 0.7;

/// The chat that is shown.
#[derive(Default)]
pub struct Conversation {
    /// `None`: a new one.
    chat: Option<Chat>,
    /// True once the chat that was shown last was looked for.
    opened_last: bool,
    branch: Vec<Message>,
    /// [`ChatController::revision`](crate::chat::ChatController::revision), and what others had written, when the branch was read.
    seen: Option<(u64, i64)>,
    /// When that was.
    looked: Option<Instant>,
    blocks: HashMap<MessageId, Blocks>,
    rows: RowHeights,
    composer: Composer,
    changed: Option<Instant>,
    editing: Option<(MessageId, String)>,
    copy: Option<String>,
    settings: ChatSettings,
    /// The answer that is shown word by word.
    words: Option<WordView>,
    /// The answer that is written once more, twice.
    comparison: Option<ComparisonView>,
    start: Start,
    room: ContextRoom,
    attaching: Attaching,
    /// Tokens of the next prompt, as counted for the latest frame.
    tokens: Option<context_room::Tokens>,
    /// True while it is asked what to do with a message that is too long.
    asking: bool,
    /// True if the message is to be sent once it is counted.
    sending: bool,
    /// The context that the model is opened again with, after which the message is sent.
    reopening: Option<usize>,
    /// True if another control had the keyboard when the last frame ended: then Escape leaves that.
    keyboard_elsewhere: bool,
    /// True if files are to be chosen with the next frame.
    choosing: bool,
    /// The call of a tool that the user was asked about last.
    asked: Option<String>,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Conversation { chat, branch, seen, .. } = self;
        f.debug_struct("Conversation").field("chat", chat).field("branch", branch).field("seen", seen).finish()
    }
}

impl Conversation {
    /// Takes what the engine has said since, also while the window is hidden.
    pub fn tick(&mut self, ctx: &egui::Context, shell: &mut Shell) {
        shell.follow_tools(self.chat.as_ref().is_some_and(|chat| chat.tools));
        for error in shell.chat_controller.poll(&mut shell.store, &shell.engine_handle) {
            shell.show_error(error);
        }
        if !self.opened_last {
            self.opened_last = true;
            self.composer.focus();
            if let Some(number) = shell.shown.take() {
                let found = shell.store.find_chat(number);
                if let Some(Some(chat)) = shell.ok_or_show_error(found) {
                    self.open(chat.id, shell);
                }
            }
        }
        self.take_files(ctx, shell);
        self.send_with_larger_context(shell);
        if self.changed.is_some_and(|since| since.elapsed() >= DRAFT) {
            self.keep_draft(shell);
        }
        self.read(shell);
        self.end_comparison_of_closed_model(shell);
        let engine = shell.engine_handle.engine();
        shell.highlight = self.words.as_ref().zip(engine).and_then(|(view, engine)| view.highlight(&engine));
    }

    /// Keeps what is not kept yet, because the window closes.
    pub fn leave(&mut self, shell: &mut Shell) {
        self.keep_draft(shell);
        for error in shell.chat_controller.release_model(&mut shell.store) {
            shell.show_error(error);
        }
        if let Some(tools) = shell.chat_controller.tools() {
            tools.hub().close();
        }
    }

    /// Does what is asked of the conversation.
    pub fn handle_command(&mut self, command: &Command, shell: &mut Shell) {
        match command {
            Command::NewChat => {
                self.keep_draft(shell);
                self.close(shell);
            }
            Command::OpenChat(chat) => {
                self.keep_draft(shell);
                self.open(*chat, shell);
            }
            Command::OpenMessage(chat, id) => {
                self.keep_draft(shell);
                let version = shell.store.message(*id).and_then(|it| shell.store.show_version(*id, it.version.0));
                shell.ok_or_show_error(version);
                self.open(*chat, shell);
                if let Some(row) = self.branch.iter().position(|message| message.id == *id) {
                    self.rows.go_to(row);
                }
            }
            Command::Compose => self.composer.focus(),
            Command::ToEnd => self.rows.go_to_end(),
            Command::Attach => self.choosing = true,
            Command::Stop => {
                if let Some(chat) = &self.chat {
                    shell.chat_controller.stop_answer(chat.id);
                }
            }
            Command::Regenerate => {
                if let Some(last) = self.branch.last() {
                    let parent = if last.speaker == Speaker::Assistant { last.parent } else { Some(last.id) };
                    self.act(MessageAction::Again(parent), shell);
                }
            }
            Command::Compare(sides) => self.compare(sides.clone(), shell),
            Command::CopyAnswer => {
                let answer = self.branch.iter().rev().find(|message| message.speaker == Speaker::Assistant);
                self.copy = answer.map(|message| message.content.clone());
            }
            _ => {}
        }
    }

    fn open(&mut self, id: ChatId, shell: &mut Shell) {
        let chat = shell.store.chat(id);
        let Some(chat) = shell.ok_or_show_error(chat) else { return };
        shell.remember(Some(id));
        self.composer = Composer::new(&chat.draft);
        self.reset(Some(chat), shell);
        self.read(shell);
    }

    fn close(&mut self, shell: &mut Shell) {
        shell.remember(None);
        self.composer = Composer::new("");
        self.reset(None, shell);
    }

    fn reset(&mut self, chat: Option<Chat>, shell: &Shell) {
        self.branch.clear();
        self.blocks.clear();
        self.rows = RowHeights::default();
        (self.chat, self.seen, self.editing, self.changed, self.words) = (chat, None, None, None, None);
        self.comparison = None;
        (self.asking, self.sending, self.reopening) = (false, false, None);
        self.settings.refresh();
        self.attaching.forget_unread();
        // Of no chat there is nothing to read.
        let _ = self.attaching.refresh(&shell.store, None);
    }

    /// Reads the chat again if there is news.
    fn read(&mut self, shell: &mut Shell) {
        let Some(chat) = &self.chat else { return };
        let version = shell.store.version();
        let Some((_, others)) = shell.ok_or_show_error(version) else { return };
        let now = (shell.chat_controller.revision(), others);
        // The other instance may have ended without notice.
        let due = self.is_elsewhere(shell) && self.looked.is_none_or(|looked| looked.elapsed() >= ELSEWHERE);
        if self.seen == Some(now) && !due {
            return;
        }
        (self.seen, self.looked) = (Some(now), Some(Instant::now()));
        let read = shell.store.find_chat(chat.id.number()).and_then(|found| match found {
            Some(chat) => Ok(Some((shell.store.branch(chat.id)?, chat))),
            None => Ok(None),
        });
        match shell.ok_or_show_error(read) {
            None => {}
            Some(None) => self.close(shell),
            Some(Some((branch, chat))) => {
                let same = self.branch.iter().zip(&branch).take_while(|(a, b)| a == b).count();
                let placed = self.branch.iter().zip(&branch).take_while(|(a, b)| a.id == b.id).count();
                for old in self.branch.iter().skip(same) {
                    self.blocks.remove(&old.id);
                }
                let files = self.attaching.refresh(&shell.store, Some(chat.id));
                self.branch = branch;
                self.chat = Some(chat);
                let estimate = |row: usize| {
                    let message = &self.branch[row];
                    let lines = message.content.len() / 90 + message.content.matches('\n').count() + 1;
                    lines as f32 * 20.0 + 56.0
                };
                self.rows.reset(placed, self.branch.len(), estimate);
                shell.ok_or_show_error(files);
            }
        }
    }

    /// The chat that is shown; a new one becomes real.
    fn ensure_chat(&mut self, shell: &mut Shell) -> Option<ChatId> {
        if self.chat.is_none() {
            let added = shell.store.add_chat(None, "").and_then(|id| shell.store.chat(id));
            let chat = shell.ok_or_show_error(added)?;
            shell.remember(Some(chat.id));
            self.chat = Some(chat);
            self.seen = None;
        }
        self.chat.as_ref().map(|chat| chat.id)
    }

    fn keep_draft(&mut self, shell: &mut Shell) {
        if self.changed.take().is_none() || (self.chat.is_none() && self.composer.text().trim().is_empty()) {
            return;
        }
        if let Some(id) = self.ensure_chat(shell) {
            let kept = shell.store.set_draft(id, self.composer.text());
            shell.ok_or_show_error(kept);
        }
    }

    fn send_message(&mut self, text: &str, shell: &mut Shell) {
        let Some(id) = self.ensure_chat(shell) else { return };
        self.read(shell);
        let parent = self.branch.last().map(|message| message.id);
        let said = shell.chat_controller.send_message(&mut shell.store, &shell.engine_handle, id, parent, text);
        if shell.ok_or_show_error(said).is_some() {
            self.composer = Composer::new("");
            self.composer.focus();
            self.changed = None;
            let kept = shell.store.set_draft(id, "");
            shell.ok_or_show_error(kept);
        }
        self.refresh(shell);
        self.rows.go_to_end();
    }

    /// Reads the chat again after it was changed here.
    fn refresh(&mut self, shell: &mut Shell) {
        self.seen = None;
        self.read(shell);
    }

    /// True while the chat is being answered.
    fn busy(&self, shell: &Shell) -> bool {
        self.chat.as_ref().is_some_and(|chat| shell.chat_controller.is_answering(chat.id))
    }

    /// Tokens of the next prompt, as they were counted for the latest frame.
    #[cfg(test)]
    pub fn counted(&self) -> Option<context_room::Tokens> {
        self.tokens
    }

    /// True once both answers of a comparison have ended.
    #[cfg(test)]
    pub fn is_compared(&self) -> bool {
        self.comparison.as_ref().is_some_and(ComparisonView::is_over)
    }

    /// True while another window is being answered in the chat.
    pub fn is_elsewhere(&self, shell: &Shell) -> bool {
        let own =
            self.chat.as_ref().and_then(|chat| shell.chat_controller.progress(chat.id)).map(|progress| progress.id);
        let written = |message: &Message| message.state == MessageState::Streaming && own != Some(message.id);
        self.branch.iter().any(written)
    }

    fn act(&mut self, act: MessageAction, shell: &mut Shell) {
        let Some(chat) = self.chat.as_ref().map(|chat| chat.id) else { return };
        match act {
            MessageAction::Copy(text) => self.copy = Some(text),
            MessageAction::Ask(command) => shell.queue_command(command),
            MessageAction::Forget => self.editing = None,
            MessageAction::Words(id) => self.words = Some(WordView::new(id)),
            _ if self.busy(shell) || self.is_elsewhere(shell) => {}
            MessageAction::Edit(id) => {
                let message = self.branch.iter().find(|message| message.id == id);
                self.editing = message.map(|message| (id, message.content.clone()));
            }
            MessageAction::Keep => {
                let Some((id, text)) = self.editing.take() else { return };
                let Some(message) = self.branch.iter().find(|message| message.id == id) else { return };
                if message.speaker == Speaker::User {
                    self.rows.go_to_end();
                }
                let kept = match message.speaker {
                    Speaker::User => shell.chat_controller.change_message(
                        &mut shell.store,
                        &shell.engine_handle,
                        chat,
                        message,
                        text.trim(),
                    ),
                    Speaker::Assistant | Speaker::Tool => shell.store.edit_message(id, &text),
                };
                self.blocks.remove(&id);
                shell.ok_or_show_error(kept);
            }
            MessageAction::Again(parent) => {
                self.rows.go_to_end();
                let started = shell.chat_controller.start_answer(&mut shell.store, &shell.engine_handle, chat, parent);
                shell.ok_or_show_error(started);
            }
            MessageAction::Resume(id) => {
                let started = shell.chat_controller.resume_answer(&mut shell.store, &shell.engine_handle, chat, id);
                self.blocks.remove(&id);
                shell.ok_or_show_error(started);
            }
            MessageAction::Version(id, version) => {
                let shown = shell.store.show_version(id, version);
                shell.ok_or_show_error(shown);
            }
        }
        self.refresh(shell);
    }

    /// Shows messages and composer.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut Offers) {
        if let Some(text) = self.copy.take() {
            ui.copy_text(text);
        }
        if std::mem::take(&mut self.choosing) {
            let started = self.attaching.choose(ui);
            shell.ok_or_show_error(started);
        }
        self.attaching.show(ui);
        self.settings(ui, shell);
        let action = Panel::bottom("composer")
            .resizable(false)
            .show_separator_line(false)
            .frame(egui::Frame::NONE)
            .show(ui, |ui| column(ui, |ui| self.compose(ui, shell)))
            .inner;
        match action {
            Some(ComposerAction::Send) => self.send(shell),
            Some(ComposerAction::Stop) => self.handle_command(&Command::Stop, shell),
            Some(ComposerAction::Attach) => {
                self.choosing = true;
                ui.request_repaint();
            }
            Some(ComposerAction::Tools) => self.switch_tools(shell),
            Some(ComposerAction::Settings) => self.settings.open = !self.settings.open,
            Some(ComposerAction::Typed) => (self.changed, self.asking) = (Some(Instant::now()), false),
            None => {}
        }
        if self.sending {
            self.send(shell);
        }
        if self.changed.is_some() {
            ui.request_repaint_after(DRAFT);
        }
        if self.is_elsewhere(shell) {
            ui.request_repaint_after(ELSEWHERE.max(frame_pace::pace(ui)));
        }
        CentralPanel::no_frame().show(ui, |ui| {
            if self.branch.is_empty() { self.start(ui, shell, offers) } else { self.messages(ui, shell) }
        });
        // After what was typed before it in the same frame.
        if ui.input(|input| input.key_pressed(Key::Escape)) {
            self.escape(ui, shell);
            ui.request_repaint();
        }
        let own = [composer::id(), message::id_of_change()];
        self.keyboard_elsewhere = keyboard::is_taken(ui, &own) && !self.settings.is_written_in(ui);
    }

    /// Closes what is open, one thing at a time, and else stops the answer. A change that is not kept stays.
    fn escape(&mut self, ui: &Ui, shell: &mut Shell) {
        let changed = self
            .editing
            .as_ref()
            .is_some_and(|(id, text)| self.branch.iter().any(|message| message.id == *id && message.content != *text));
        match () {
            () if self.keyboard_elsewhere => {}
            () if self.settings.open => self.settings.close(),
            () if changed && !self.busy(shell) => {
                ui.memory_mut(|memory| memory.request_focus(message::id_of_change()));
                return shell.toasts.info("Your change is not kept yet. Keep it, or take it back with Cancel.");
            }
            () if !changed && self.editing.take().is_some() => {}
            () => self.handle_command(&Command::Stop, shell),
        }
        self.composer.focus();
    }

    /// The model that would answer, and its own sampling.
    fn model(&self, shell: &Shell) -> (Option<ModelId>, thermocline_engine::session::Sampling) {
        let model = match shell.engine_handle.state() {
            ModelState::Ready { model, .. } | ModelState::Failed { model, .. } => Some(model),
            ModelState::Remote { model, .. } => Some(ModelId::Remote(model)),
            ModelState::Opening(opening) => Some(opening.model),
            ModelState::Empty => None,
        };
        let base = model.as_ref().map(SamplingOverrides::model_defaults).unwrap_or_default();
        (model, base)
    }

    fn settings(&mut self, ui: &mut Ui, shell: &mut Shell) {
        if !self.settings.open {
            return;
        }
        let (model, base) = self.model(shell);
        let chat = self.chat.as_ref();
        let before = ChatOptions {
            system_prompt: chat.map(|chat| chat.system_prompt.clone()).unwrap_or_default(),
            choices: SamplingOverrides::from_json(chat.and_then(|chat| chat.sampling.as_deref())),
        };
        let mut options = before.clone();
        let key = model.map(|model| model.key());
        let shown = self.settings.show(ui, &mut shell.store, &mut options, key.as_deref(), &base);
        shell.ok_or_show_error(shown);
        if options != before
            && let Some(id) = self.ensure_chat(shell)
        {
            let sampling = options.choices.to_json();
            let kept = shell.store.set_system_prompt(id, &options.system_prompt);
            let kept = kept.and_then(|()| shell.store.set_chat_sampling(id, sampling.as_deref()));
            shell.ok_or_show_error(kept);
            if let Some(chat) = &mut self.chat {
                (chat.system_prompt, chat.sampling) = (options.system_prompt, sampling);
            }
        }
    }

    fn start(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut Offers) {
        if let Some(text) = self.start.show(ui, shell, offers) {
            self.send_message(text, shell);
        }
    }
}

/// A column in the middle, no wider than a line of text should be.
fn column<R>(ui: &mut Ui, contents: impl FnOnce(&mut Ui) -> R) -> R {
    let measure = MEASURE.clamp(MEASURE_FRACTION * ui.available_width());
    let side = ((ui.available_width() - measure) * 0.5).max(0.0);
    ui.horizontal_top(|ui| {
        ui.spacing_mut().item_spacing.x = 0.0;
        ui.add_space(side);
        ui.vertical(|ui| {
            ui.spacing_mut().item_spacing.x = 8.0;
            ui.set_width(ui.available_width().min(measure));
            contents(ui)
        })
        .inner
    })
    .inner
}

#[cfg(test)]
mod tests;
