//! The chat that is shown: opened and closed, read again after news, and made real by its first words.

use std::time::Instant;

use super::{Composer, Conversation, ELSEWHERE, row_heights::RowHeights};
use crate::{
    store::{Chat, ChatId, Message, MessageState},
    ui::shell::Shell,
};

impl Conversation {
    pub(super) fn open(&mut self, id: ChatId, shell: &mut Shell) {
        self.remove_empty(shell);
        let chat = shell.store.chat(id);
        let Some(chat) = shell.ok_or_show_error(chat) else { return };
        shell.remember(Some(id));
        self.composer = Composer::new(&chat.draft);
        self.reset(Some(chat), shell);
        self.read(shell);
    }

    pub(super) fn close(&mut self, shell: &mut Shell) {
        self.remove_empty(shell);
        shell.remember(None);
        self.composer = Composer::new("");
        self.reset(None, shell);
    }

    /// Removes the chat that is left if nothing was said in it: an empty row would stay in the
    /// list.
    pub(super) fn remove_empty(&mut self, shell: &mut Shell) {
        if let Some(chat) = self.chat.as_ref().filter(|_| self.branch.is_empty()) {
            let removed = shell.store.remove_empty_chat(chat.id);
            shell.ok_or_show_error(removed);
        }
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
    pub(super) fn read(&mut self, shell: &mut Shell) {
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
    pub(super) fn ensure_chat(&mut self, shell: &mut Shell) -> Option<ChatId> {
        if self.chat.is_none() {
            let added = shell.store.add_chat(None, "").and_then(|id| shell.store.chat(id));
            let chat = shell.ok_or_show_error(added)?;
            shell.remember(Some(chat.id));
            self.chat = Some(chat);
            self.seen = None;
        }
        self.chat.as_ref().map(|chat| chat.id)
    }

    pub(super) fn keep_draft(&mut self, shell: &mut Shell) {
        if self.changed.take().is_none() || (self.chat.is_none() && self.composer.text().trim().is_empty()) {
            return;
        }
        if let Some(id) = self.ensure_chat(shell) {
            let kept = shell.store.set_draft(id, self.composer.text());
            shell.ok_or_show_error(kept);
        }
    }

    /// Reads the chat again after it was changed here.
    pub(super) fn refresh(&mut self, shell: &mut Shell) {
        self.seen = None;
        self.read(shell);
    }

    /// True while the chat is being answered.
    pub(super) fn busy(&self, shell: &Shell) -> bool {
        self.chat.as_ref().is_some_and(|chat| shell.chat_controller.is_answering(chat.id))
    }

    /// True while another window is being answered in the chat.
    pub fn is_elsewhere(&self, shell: &Shell) -> bool {
        let own =
            self.chat.as_ref().and_then(|chat| shell.chat_controller.progress(chat.id)).map(|progress| progress.id);
        let written = |message: &Message| message.state == MessageState::Streaming && own != Some(message.id);
        self.branch.iter().any(written)
    }
}
