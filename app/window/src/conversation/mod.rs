//! The messages of one chat. [`message_list`] is the list of them, of which [`row_heights`] lays out only those that can be seen,
//! [`message`] draws one, [`blocks`] the text of an answer, [`explained`] an answer word by word with the neurons that made one,
//! [`compared`] two answers side by side, begun by [`comparing`], [`start`] the page before the first.
//!
//! [`composer`] is the field where one writes, [`composing`] fills it with the figures of the chat; [`attaching`] and [`files`] read
//! the files that go with a message, [`chips`] shows them and the sources of answers; [`context_room`] counts tokens, [`over_limit`]
//! asks where they are too many, and [`sending`] sends the message. [`writer`] says which model may explain an answer,
//! [`failure`] why a model could not be opened. [`tool_calls`] shows calls of tools, [`tool_choices`] carries out what the user
//! decides about them. [`shown_chat`] opens, closes and reads the chat, a [`message_action`] does something to a message, a
//! [`message_change`] is what is written instead of it, [`chat_settings`] is what the model is told beside the messages.

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
mod failure;
mod files;
mod message;
mod message_action;
mod message_change;
mod message_list;
mod over_limit;
mod row_heights;
mod sending;
mod shown_chat;
mod start;
mod tool_calls;
mod tool_choices;
mod writer;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use egui::{CentralPanel, Key, Panel, Ui};

pub use self::composer::id as composer_id;
use self::{
    attaching::Attaching,
    blocks::MessageBlocks,
    chat_settings::ChatSettings,
    compared::ComparisonView,
    composer::{Composer, ComposerAction},
    context_room::ContextRoom,
    explained::WordView,
    message_action::MessageAction,
    message_change::MessageChange,
    row_heights::RowHeights,
    sending::Delivery,
    shown_chat::ChatReading,
    start::StartView,
};
use crate::{command::Command, keyboard, models::Offers, shell::Shell};
use thermocline_chats::{
    chat::StopCause,
    store::{Chat, MessageId, Speaker, StoredMessage},
};
use thermocline_host::engine_handle::ModelState;
use thermocline_rich_text::frame_pace;

/// Notice about an answer that ended with its model.
const BROKEN_OFF: &str =
    "The answer was stopped because its model was closed. What it has said is kept; Continue goes on with it.";

/// A draft is kept this long after its first change that is not kept.
const DRAFT: Duration = Duration::from_millis(250);

/// How often an answer that another window writes is looked at.
const ELSEWHERE: Duration = Duration::from_millis(500);

/// Widest line of text, in points: on a wide screen more than on a usual one, but never so much that the eye loses the line.
const MEASURE: egui::Rangef = egui::Rangef { min: 760.0, max: 1000.0 };

/// Fraction of a wide page that text takes.
const MEASURE_FRACTION: f32 = 0.7;

/// The chat that is shown.
#[derive(Debug, Default)]
pub struct Conversation {
    /// `None`: a new one.
    chat: Option<Chat>,
    /// True once the chat that was shown last was looked for.
    opened_last: bool,
    branch: Vec<StoredMessage>,
    reading: ChatReading,
    blocks: HashMap<MessageId, MessageBlocks>,
    rows: RowHeights,
    composer: Composer,
    /// Height that it took last, in points.
    composer_height: f32,
    editing: Option<MessageChange>,
    copy: Option<String>,
    settings: ChatSettings,
    /// The answer that is shown word by word.
    words: Option<WordView>,
    /// The answer that is written once more, twice.
    comparison: Option<ComparisonView>,
    start: StartView,
    room: ContextRoom,
    attaching: Attaching,
    parts: files::DecidedParts,
    /// Tokens of the next prompt, as counted for the latest frame.
    tokens: Option<context_room::PromptTokens>,
    delivery: Delivery,
    /// True if another control had the keyboard when the last frame ended: then Escape leaves that.
    keyboard_elsewhere: bool,
    /// True if files are to be chosen with the next frame.
    choosing: bool,
    /// The call of a tool that the user was asked about last.
    asked: Option<String>,
}

impl Conversation {
    /// Takes what the engine has said since, also while the window is hidden.
    pub fn tick(&mut self, ctx: &egui::Context, shell: &mut Shell) {
        shell.follow_tools(self.chat.as_ref().is_some_and(|chat| chat.tools));
        for error in shell.chat_controller.poll(&mut shell.store) {
            shell.show_error(error);
        }
        if shell.chat_controller.take_broken_off() {
            shell.toasts.warning(BROKEN_OFF);
        }
        if !self.opened_last {
            self.opened_last = true;
            self.composer.focus = true;
            if let Some(number) = shell.shown.take()
                && let Some(Some(chat)) = shell.toasts.check(shell.store.find_chat(number))
            {
                self.open(chat.id, shell);
            }
        }
        self.take_files(ctx, shell);
        self.send_with_larger_context(shell);
        if self.composer.changed.is_some_and(|since| since.elapsed() >= DRAFT) && shell.store.is_writable() {
            self.keep_draft(shell);
        }
        self.follow(ctx, shell);
        self.end_comparison_of_closed_model(shell);
        self.end_words_of_another_model(shell);
        let engine = shell.engine_handle.engine();
        shell.marks.highlight = self.words.as_ref().zip(engine).and_then(|(view, engine)| view.highlight(&engine));
    }

    /// Keeps what is not kept yet, because the window closes.
    pub fn leave(&mut self, shell: &mut Shell) {
        self.keep_draft(shell);
        self.remove_empty(shell);
        for error in shell.chat_controller.release_model(&mut shell.store, StopCause::WindowClosed) {
            shell.show_error(error);
        }
        if let Some(tools) = shell.chat_controller.tools() {
            tools.hub().close();
        }
    }

    /// Sentences about what is lost if the window closes now.
    pub fn losses(&self) -> Vec<String> {
        let mut losses = Vec::new();
        match &*self.attaching.all_unread() {
            [] => {}
            [name] => losses.push(format!("{name} is still being read. It is not attached.")),
            names => losses.push(format!("{} files are still being read. They are not attached.", names.len())),
        }
        if self.editing.as_ref().is_some_and(|change| change.differs(&self.branch)) {
            losses.push("Your change to a message is not kept yet.".to_owned());
        }
        losses
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
                self.open(*chat, shell);
                self.go_to_message(*id, shell);
            }
            Command::Compose => self.composer.focus = true,
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

    /// Tokens of the next prompt, as they were counted for the latest frame.
    #[cfg(test)]
    pub fn counted(&self) -> Option<context_room::PromptTokens> {
        self.tokens
    }

    /// True once both answers of a comparison have ended.
    #[cfg(test)]
    pub fn is_compared(&self) -> bool {
        self.comparison.as_ref().is_some_and(ComparisonView::is_over)
    }

    /// Shows messages and composer.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut Offers) {
        if let Some(text) = self.copy.take() {
            ui.copy_text(text);
        }
        if std::mem::take(&mut self.choosing) {
            shell.toasts.check(self.attaching.choose(ui));
        }
        self.attaching.show(ui);
        self.settings(ui, shell);
        let composer = Panel::bottom("composer")
            .resizable(false)
            .show_separator_line(false)
            .frame(egui::Frame::NONE)
            .show(ui, |ui| {
                column(ui, |ui| {
                    // A model that failed is told of above the messages.
                    if !self.branch.is_empty() && matches!(shell.engine_handle.state(), ModelState::Empty) {
                        start::without_model(ui, shell);
                    }
                    self.compose(ui, shell)
                })
            });
        // A panel has the height that it took before. In a slow window its buttons would be outside
        // of it for seconds.
        let height = composer.response.rect.height();
        if (std::mem::replace(&mut self.composer_height, height) - height).abs() > 0.5 {
            ui.request_discard("the composer has another height");
        }
        match composer.inner {
            Some(ComposerAction::Send) => self.send(shell),
            Some(ComposerAction::Stop) => self.handle_command(&Command::Stop, shell),
            Some(ComposerAction::Attach) => {
                self.choosing = true;
                ui.request_repaint();
            }
            Some(ComposerAction::Tools) => self.switch_tools(shell),
            Some(ComposerAction::Settings) => self.settings.open = !self.settings.open,
            Some(ComposerAction::Typed) => {
                self.composer.changed.get_or_insert_with(Instant::now);
                if self.delivery == Delivery::Asks {
                    self.delivery = Delivery::Written;
                }
            }
            None => {}
        }
        if self.delivery == Delivery::Waits {
            self.send(shell);
        }
        if self.composer.changed.is_some() || self.delivery == Delivery::Waits {
            ui.request_repaint_after(DRAFT);
        }
        if self.is_elsewhere(shell) {
            ui.request_repaint_after(ELSEWHERE.max(frame_pace::pace(ui)));
        }
        if !self.branch.is_empty() {
            failure::show(ui, shell);
        }
        CentralPanel::no_frame().show(ui, |ui| {
            if !self.branch.is_empty() {
                self.messages(ui, shell);
            } else if let Some(text) = self.start.show(ui, shell, offers) {
                self.send_message(text, shell);
            }
        });
        // After what was typed before it in the same frame.
        if ui.input(|input| input.key_pressed(Key::Escape)) {
            self.escape(ui, shell);
            ui.request_repaint();
        }
        let own = [composer::id(), message_change::id()];
        self.keyboard_elsewhere = keyboard::is_taken(ui, &own) && !self.settings.is_written_in(ui);
    }

    /// Closes what is open, one thing at a time, and else stops the answer. A change that is not kept stays.
    fn escape(&mut self, ui: &Ui, shell: &mut Shell) {
        let busy = self.busy(shell);
        let changed = self.editing.as_ref().is_some_and(|change| change.differs(&self.branch));
        match &mut self.editing {
            _ if self.keyboard_elsewhere => {}
            _ if self.settings.open => self.settings.close(),
            Some(change) if changed && !busy => return change.hold(ui),
            Some(_) if !changed => self.editing = None,
            _ if self.words.is_some() => self.words = None,
            _ if self.comparison.is_some() => self.comparison = None,
            _ => self.handle_command(&Command::Stop, shell),
        }
        self.composer.focus = true;
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
