//! The shown chat: opens and closes it, reads it again after changes, and stores a new chat with
//! its first message.

use std::{collections::HashMap, time::Instant};

use egui::Context;

use super::{Composer, Conversation, ELSEWHERE, row_heights::RowHeights, sending::Delivery};
use crate::shell::Shell;
use thermocline_chats::store::{
    Attachment, Chat, ChatId, MessageId, MessageState, PassageRanking, Source, Store, StoreError, StoredMessage,
};
use thermocline_rich_text::background::Background;

/// Everything that is shown of a chat.
#[derive(Debug)]
pub struct ChatContents {
    chat: Chat,
    branch: Vec<StoredMessage>,
    files: Vec<Attachment>,
    sources: HashMap<MessageId, Vec<Source>>,
    rankings: HashMap<MessageId, PassageRanking>,
}

impl ChatContents {
    /// Reads the chat with this number. `None` if it does not exist.
    fn read(store: &Store, number: i64) -> Result<Option<Self>, StoreError> {
        let Some(chat) = store.find_chat(number)? else { return Ok(None) };
        let (branch, files) = (store.branch(chat.id)?, store.attachments(chat.id)?);
        let (sources, rankings) = (store.sources(chat.id)?, store.rankings(chat.id)?);
        Ok(Some(ChatContents { chat, branch, files, sources, rankings }))
    }
}

/// A version of the chats: what this window and other connections have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChatVersion {
    /// Revision of the [`ChatController`](thermocline_chats::chat::ChatController).
    own: u64,
    /// The store's count of the changes of other connections.
    others: i64,
}

/// How far the shown chat has been read.
#[derive(Debug, Default)]
pub struct ChatReading {
    /// The version that was read last.
    seen: Option<ChatVersion>,
    /// When the chat was read last.
    looked: Option<Instant>,
    /// How often this thread has read a chat or opened another one.
    reads: u64,
    /// The thread that reads the chat again. Its result has the value of `reads` from its start.
    thread: Background<(u64, Result<Option<ChatContents>, StoreError>)>,
}

impl ChatReading {
    /// Notes that `version` is read now.
    fn note(&mut self, version: ChatVersion) {
        (self.seen, self.looked) = (Some(version), Some(Instant::now()));
    }

    /// Begins again with another chat.
    fn restart(&mut self) {
        self.seen = None;
        self.reads += 1;
    }

    /// The result of the thread, if no newer one was read meanwhile.
    fn take(&mut self) -> Option<Result<Option<ChatContents>, StoreError>> {
        self.thread.take().filter(|(reads, _)| *reads == self.reads).map(|(_, contents)| contents)
    }
}

impl Conversation {
    pub(super) fn open(&mut self, id: ChatId, shell: &mut Shell) {
        self.leave_chat(shell);
        let Some(chat) = shell.toasts.check(shell.store.chat(id)) else { return };
        shell.remember(Some(id));
        self.composer = Composer::new(&chat.draft);
        self.reset(Some(chat));
        self.attaching.redirect(Some(id), None);
        self.read(shell);
    }

    /// Scrolls to a message of the shown chat, on another branch if necessary.
    pub(super) fn go_to_message(&mut self, id: MessageId, shell: &mut Shell) {
        if self.branch.iter().all(|message| message.id != id) {
            shell.toasts.check(shell.store.message(id).and_then(|it| shell.store.show_version(id, it.version.0)));
            self.refresh(shell);
        }
        if let Some(row) = self.branch.iter().position(|message| message.id == id) {
            self.rows.go_to(row);
        }
    }

    pub(super) fn close(&mut self, shell: &mut Shell) {
        self.leave_chat(shell);
        shell.remember(None);
        self.composer = Composer::new("");
        self.reset(None);
    }

    /// Assigns the unread files to the chat that is left. Without unread files, an empty chat is
    /// removed.
    fn leave_chat(&mut self, shell: &mut Shell) {
        let chat = if self.attaching.is_reading() { self.ensure_chat(shell) } else { None };
        match chat {
            Some(chat) => self.attaching.redirect(None, Some(chat)),
            None => self.remove_empty(shell),
        }
    }

    /// Removes the chat that is left if it has no messages. An empty row would stay in the list
    /// otherwise.
    pub(super) fn remove_empty(&mut self, shell: &mut Shell) {
        if let Some(chat) = self.chat.as_ref().filter(|_| self.branch.is_empty()) {
            let id = chat.id;
            shell.change_chats(move |store| store.remove_empty_chat(id));
        }
    }

    fn reset(&mut self, chat: Option<Chat>) {
        self.branch.clear();
        self.blocks.clear();
        self.rows = RowHeights::default();
        (self.chat, self.editing, self.words, self.picture) = (chat, None, None, None);
        (self.comparison, self.delivery) = (None, Delivery::Written);
        self.settings.refresh();
        self.attaching.set(Vec::new(), HashMap::new(), HashMap::new());
        self.reading.restart();
    }

    /// Reads the chat again after a change. A thread reads what another window has changed.
    pub(super) fn follow(&mut self, ctx: &Context, shell: &mut Shell) {
        if let Some(contents) = self.reading.take() {
            self.set_contents(contents, shell);
        }
        let (Some(number), Some(version)) = (self.chat.as_ref().map(|chat| chat.id.number()), self.unread(shell))
        else {
            return;
        };
        let by_others = self.reading.seen.is_some_and(|seen| seen.own == version.own);
        if !by_others || shell.store.file().is_none() {
            return self.read(shell);
        }
        if self.reading.thread.is_busy() {
            return;
        }
        self.reading.note(version);
        let reads = self.reading.reads;
        let contents = shell.store.reading(move |store| ChatContents::read(store, number));
        shell.toasts.check(self.reading.thread.start(ctx, move || (reads, contents())));
    }

    /// Reads the chat again on this thread, after it was opened or changed here.
    pub(super) fn read(&mut self, shell: &mut Shell) {
        let (Some(chat), Some(version)) = (&self.chat, self.unread(shell)) else { return };
        self.reading.note(version);
        // A thread that is reading the chat reads an older version.
        self.reading.reads += 1;
        let contents = ChatContents::read(&shell.store, chat.id.number());
        self.set_contents(contents, shell);
    }

    /// The current version of the chat, if it has not been read.
    fn unread(&self, shell: &mut Shell) -> Option<ChatVersion> {
        let (_, others) = shell.toasts.check(shell.store.version())?;
        let now = ChatVersion { own: shell.chat_controller.revision(), others };
        // The other window may have crashed without a trace in the store.
        let due = self.is_elsewhere(shell) && self.reading.looked.is_none_or(|looked| looked.elapsed() >= ELSEWHERE);
        (self.reading.seen != Some(now) || due).then_some(now)
    }

    /// Shows the contents. Closes a chat that no longer exists.
    fn set_contents(&mut self, contents: Result<Option<ChatContents>, StoreError>, shell: &mut Shell) {
        let Some(contents) = shell.toasts.check(contents) else { return };
        let Some(ChatContents { chat, branch, files, sources, rankings }) = contents else { return self.close(shell) };
        let same = self.branch.iter().zip(&branch).take_while(|(a, b)| a == b).count();
        let placed = self.branch.iter().zip(&branch).take_while(|(a, b)| a.id == b.id).count();
        for old in self.branch.iter().skip(same) {
            self.blocks.remove(&old.id);
        }
        self.attaching.set(files, sources, rankings);
        (self.branch, self.chat) = (branch, Some(chat));
        let estimate = |row: usize| {
            let message = &self.branch[row];
            let lines = message.content.len() / 90 + message.content.matches('\n').count() + 1;
            lines as f32 * 20.0 + 56.0
        };
        self.rows.reset(placed, self.branch.len(), estimate);
    }

    /// Returns the shown chat. Stores a new chat first.
    pub(super) fn ensure_chat(&mut self, shell: &mut Shell) -> Option<ChatId> {
        if self.chat.is_none() {
            let chat = shell.toasts.check(shell.store.add_chat(None, "").and_then(|id| shell.store.chat(id)))?;
            shell.remember(Some(chat.id));
            self.chat = Some(chat);
            self.reading.seen = None;
        }
        self.chat.as_ref().map(|chat| chat.id)
    }

    pub(super) fn keep_draft(&mut self, shell: &mut Shell) {
        if self.composer.changed.take().is_none() || (self.chat.is_none() && self.composer.text.trim().is_empty()) {
            return;
        }
        if let Some(id) = self.ensure_chat(shell) {
            let text = self.composer.text.to_owned();
            shell.change_chats(move |store| store.set_draft(id, &text));
        }
    }

    /// Reads the chat again after it was changed here.
    pub(super) fn refresh(&mut self, shell: &mut Shell) {
        self.reading.seen = None;
        self.read(shell);
    }

    /// True while the chat is being answered by this window.
    pub(super) fn busy(&self, shell: &Shell) -> bool {
        self.chat.as_ref().is_some_and(|chat| shell.chat_controller.is_answering(chat.id))
    }

    /// True while another window writes an answer in the chat.
    pub fn is_elsewhere(&self, shell: &Shell) -> bool {
        let own =
            self.chat.as_ref().and_then(|chat| shell.chat_controller.progress(chat.id)).map(|progress| progress.id);
        let written = |message: &StoredMessage| message.state == MessageState::Streaming && own != Some(message.id);
        self.branch.iter().any(written)
    }
}
