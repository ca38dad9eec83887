//! The messages of one chat. [`message_list`] is the list of messages, [`row_heights`] lays out
//! only the visible ones, and [`message`] draws one. [`blocks`] draws the text of an answer.
//! [`explained`] shows an answer word by word with the neurons of each word. [`compared`] shows two
//! answers side by side, begun by [`comparing`]. [`start`] is the page of an empty chat.
//!
//! [`composer`] is the text field, and [`composing`] fills it with the chat's figures.
//! [`attaching`] and [`files`] read the files of a message. [`chips`] shows the files and the
//! sources of answers, and [`thumbnails`] decodes their pictures. An [`opened_picture`] shows the
//! neurons at its [`patches`], in the same [`neuron_table`] as the neurons of a word.
//! [`context_room`] counts tokens, [`over_limit`] asks what to do if they are too many, and
//! [`sending`] sends the message.
//!
//! [`writer`] decides if the open model can explain an answer, and [`failure`] says why a model
//! could not be opened. [`tool_calls`] shows tool calls, and [`tool_choices`] carries out the
//! user's decisions about them. [`shown_chat`] opens, closes and reads the chat. A
//! [`message_action`] acts on a message, and a [`message_change`] edits it. [`chat_settings`] has
//! the system prompt and the sampling.

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
mod neuron_table;
mod opened_picture;
mod over_limit;
mod patches;
mod row_heights;
mod sending;
mod shown_chat;
mod start;
mod thumbnails;
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
    opened_picture::OpenedPicture,
    row_heights::RowHeights,
    sending::Delivery,
    shown_chat::ChatReading,
    start::StartView,
    thumbnails::Thumbnails,
};
use crate::{command::Command, keyboard, models::DownloadOffers, shell::Shell};
use thermocline_chats::{
    chat::StopCause,
    store::{Chat, MessageId, Speaker, StoredMessage},
};
use thermocline_host::engine_handle::ModelState;
use thermocline_rich_text::frame_pace;

/// Notice after an answer was stopped because its model was closed.
const BROKEN_OFF: &str =
    "The answer stopped because its model was closed. The text so far is kept. Click Continue to complete it.";

/// Delay between the first unsaved change of the draft and its write.
const DRAFT: Duration = Duration::from_millis(250);

/// Interval of the checks of an answer that another window writes.
const ELSEWHERE: Duration = Duration::from_millis(500);

/// Minimum and maximum width of a text line, in points. Wide screens get longer lines, but lines
/// stay short enough to read.
const MEASURE: egui::Rangef = egui::Rangef { min: 760.0, max: 1000.0 };

/// Fraction of a wide page's width that the text uses.
const MEASURE_FRACTION: f32 = 0.7;

/// The shown chat.
#[derive(Debug, Default)]
pub struct Conversation {
    /// The chat. `None` for a new chat that is not stored yet.
    chat: Option<Chat>,
    /// True once the chat of the last run was looked up.
    opened_last: bool,
    branch: Vec<StoredMessage>,
    reading: ChatReading,
    blocks: HashMap<MessageId, MessageBlocks>,
    rows: RowHeights,
    composer: Composer,
    /// Height of the composer in the previous frame, in points.
    composer_height: f32,
    editing: Option<MessageChange>,
    copy: Option<String>,
    settings: ChatSettings,
    /// The answer shown word by word.
    words: Option<WordView>,
    /// The picture shown large.
    picture: Option<OpenedPicture>,
    /// The comparison of two repeated answers.
    comparison: Option<ComparisonView>,
    start: StartView,
    room: ContextRoom,
    attaching: Attaching,
    thumbnails: Thumbnails,
    parts: files::DecidedParts,
    /// Tokens of the next prompt, as of the latest frame.
    tokens: Option<context_room::PromptTokens>,
    delivery: Delivery,
    /// True if another control had the keyboard focus at the end of the previous frame. Escape then
    /// belongs to it.
    keyboard_elsewhere: bool,
    /// True if the next frame opens the file dialog.
    choosing: bool,
    /// The tool call that last asked for the user's consent.
    asked: Option<String>,
}

impl Conversation {
    /// Handles new events of the engine, also while the window is hidden.
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
        if let Some(picture) = &mut self.picture {
            picture.end_firing_of_another_model(engine.as_ref());
        }
        shell.marks.highlight = engine.and_then(|engine| {
            let of_word = self.words.as_ref().and_then(|view| view.highlight(&engine));
            of_word.or_else(|| self.picture.as_ref()?.highlight(&engine))
        });
    }

    /// Stores everything that is unsaved, because the window closes.
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

    /// Sentences about what would be lost if the window closed now.
    pub fn losses(&self) -> Vec<String> {
        let mut losses = Vec::new();
        match &*self.attaching.all_unread() {
            [] => {}
            [name] => losses.push(format!("{name} is still being read. It is not attached.")),
            names => losses.push(format!("{} files are still being read. They are not attached.", names.len())),
        }
        if self.editing.as_ref().is_some_and(|change| change.differs(&self.branch)) {
            losses.push("Your change to a message is not saved yet.".to_owned());
        }
        losses
    }

    /// Carries out a command for the conversation.
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

    /// Tokens of the next prompt, as of the latest frame.
    #[cfg(test)]
    pub fn counted(&self) -> Option<context_room::PromptTokens> {
        self.tokens
    }

    /// True once both answers of a comparison have ended.
    #[cfg(test)]
    pub fn is_compared(&self) -> bool {
        self.comparison.as_ref().is_some_and(ComparisonView::is_over)
    }

    /// The picture shown large.
    #[cfg(test)]
    pub fn opened_picture(&self) -> Option<&OpenedPicture> {
        self.picture.as_ref()
    }

    /// Shows the messages and the composer.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut DownloadOffers) {
        if let Some(text) = self.copy.take() {
            ui.copy_text(text);
        }
        if std::mem::take(&mut self.choosing) {
            shell.toasts.check(self.attaching.choose(ui));
        }
        self.attaching.show(ui);
        self.attaching.add_pasted(ui);
        self.thumbnails.tick(ui, &shell.store, self.attaching.shown());
        self.settings(ui, shell);
        let composer = Panel::bottom("composer")
            .resizable(false)
            .show_separator_line(false)
            .frame(egui::Frame::NONE)
            .show(ui, |ui| {
                column(ui, |ui| {
                    // A failed model is reported above the messages.
                    if !self.branch.is_empty() && matches!(shell.engine_handle.state(), ModelState::Empty) {
                        start::without_model(ui, shell);
                    }
                    self.compose(ui, shell)
                })
            });
        // A panel has its height of the previous frame. In a slow window its buttons would be
        // outside the panel for seconds.
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
        // Escape comes after the text typed before it in the same frame.
        if ui.input(|input| input.key_pressed(Key::Escape)) {
            self.escape(ui, shell);
            ui.request_repaint();
        }
        let own = [composer::id(), message_change::id()];
        self.keyboard_elsewhere = keyboard::is_taken(ui, &own) && !self.settings.is_written_in(ui);
    }

    /// Closes one open thing, or else stops the answer. An unsaved edit stays.
    fn escape(&mut self, ui: &Ui, shell: &mut Shell) {
        let busy = self.busy(shell);
        let changed = self.editing.as_ref().is_some_and(|change| change.differs(&self.branch));
        match &mut self.editing {
            _ if self.keyboard_elsewhere => {}
            _ if self.settings.open => self.settings.close(),
            Some(change) if changed && !busy => return change.hold(ui),
            Some(_) if !changed => self.editing = None,
            _ if self.words.is_some() => self.words = None,
            _ if self.picture.is_some() => self.picture = None,
            _ if self.comparison.is_some() => self.comparison = None,
            _ => self.handle_command(&Command::Stop, shell),
        }
        self.composer.focus = true;
    }
}

/// Lays out a centred column, no wider than a line of text should be.
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
