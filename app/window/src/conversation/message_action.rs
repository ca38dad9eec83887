//! The actions on a message of the chat.

use super::{Conversation, explained::WordView, message_change::MessageChange, opened_picture::OpenedPicture};
use crate::{command::Command, shell::Shell};
use thermocline_chats::store::{AttachmentId, MessageId, Speaker};

/// An action on a message.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageAction {
    /// Copy this text to the clipboard.
    Copy(String),
    /// Start to edit it.
    Edit(MessageId),
    /// Store the edit.
    Keep,
    /// Discard the edit.
    Forget,
    /// Generate another answer to this message.
    Again(Option<MessageId>),
    /// Continue this answer.
    Resume(MessageId),
    /// Show another version of it.
    Version(MessageId, usize),
    /// Show it word by word, to see which neurons made a word.
    Words(MessageId),
    /// Show this picture large, to see which neurons fire at its patches, or close it.
    Picture(AttachmentId),
    /// Queue a command for the window.
    Ask(Command),
}

impl Conversation {
    /// Carries out an action. While the chat is being answered, actions that change a message do
    /// nothing.
    pub(super) fn act(&mut self, act: MessageAction, shell: &mut Shell) {
        let Some(chat) = self.chat.as_ref().map(|chat| chat.id) else { return };
        match act {
            MessageAction::Copy(text) => self.copy = Some(text),
            MessageAction::Ask(command) => shell.queue_command(command),
            MessageAction::Forget => self.editing = None,
            MessageAction::Words(id) => self.words = Some(WordView::new(id)),
            MessageAction::Picture(id) => {
                let is_open = self.picture.take().is_some_and(|open| open.id == id);
                let file = self.attaching.shown().find(|file| file.id == id).filter(|_| !is_open);
                self.picture = file.and_then(|file| Some(OpenedPicture::new(file.message?, file)));
            }
            _ if self.busy(shell) || self.is_elsewhere(shell) => {}
            MessageAction::Edit(id) => {
                let message = self.branch.iter().find(|message| message.id == id);
                self.editing = message.map(MessageChange::new);
            }
            MessageAction::Keep => {
                let Some(MessageChange { id, text, .. }) = self.editing.take() else { return };
                let Some(message) = self.branch.iter().find(|message| message.id == id) else { return };
                if message.speaker == Speaker::User {
                    self.rows.go_to_end();
                }
                let kept = match message.speaker {
                    Speaker::User => shell.chat_controller.change_message(&mut shell.store, chat, message, text.trim()),
                    Speaker::Assistant | Speaker::Tool if message.content == text => Ok(()),
                    Speaker::Assistant | Speaker::Tool => shell.store.add_edited_version(id, &text).map(drop),
                };
                self.blocks.remove(&id);
                shell.toasts.check(kept);
            }
            MessageAction::Again(parent) => {
                self.rows.go_to_end();
                shell.toasts.check(shell.chat_controller.start_answer(&mut shell.store, chat, parent));
            }
            MessageAction::Resume(id) => {
                let started = shell.chat_controller.resume_answer(&mut shell.store, chat, id);
                self.blocks.remove(&id);
                shell.toasts.check(started);
            }
            MessageAction::Version(id, version) => {
                shell.toasts.check(shell.store.show_version(id, version));
            }
        }
        self.refresh(shell);
    }
}
