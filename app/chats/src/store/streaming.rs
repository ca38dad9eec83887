//! A message that grows while the model generates it.

use std::time::{Duration, Instant};

use rusqlite::params;

use super::{
    ChatId, MessageId, MessageState, NewMessage, Store,
    error::{OperationContext, StoreError},
    message, now, one,
};

/// Longest time between commits while text arrives.
const COMMIT: Duration = Duration::from_millis(500);
/// Longest time between updates of `touched` while no text arrives.
const HEARTBEAT: Duration = Duration::from_secs(4);

/// A message being streamed. Pushed text is on disk after at most half a second if
/// [`StreamingMessage::push`] or [`StreamingMessage::poll`] is called meanwhile.
#[derive(Debug)]
pub struct StreamingMessage {
    id: MessageId,
    content: String,
    /// Bytes of `content` that are on disk.
    saved: usize,
    last: Instant,
}

impl StreamingMessage {
    /// Adds an empty answer to `parent`.
    pub fn begin(
        store: &mut Store,
        chat: ChatId,
        parent: Option<MessageId>,
        model: Option<&str>,
    ) -> Result<Self, StoreError> {
        let id = store.add_message(chat, parent, &NewMessage::streaming(model))?;
        Ok(StreamingMessage { id, content: String::new(), saved: 0, last: Instant::now() })
    }

    /// Continues a message that ended early.
    pub fn resume(store: &mut Store, id: MessageId) -> Result<Self, StoreError> {
        let content = store.message(id)?.content;
        let mut this = StreamingMessage { id, saved: content.len(), content, last: Instant::now() };
        this.finish(store, MessageState::Streaming, None)?;
        Ok(this)
    }

    /// Row id of the message.
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// The text so far.
    pub fn content(&self) -> &str {
        &self.content
    }

    /// Appends text. A later call commits it.
    pub fn append(&mut self, text: &str) {
        self.content.push_str(text);
    }

    /// Appends text and commits if a commit is due.
    pub fn push(&mut self, store: &mut Store, text: &str) -> Result<(), StoreError> {
        self.append(text);
        self.poll(store)
    }

    /// `true` if all text is on disk.
    pub fn is_saved(&self) -> bool {
        self.saved == self.content.len()
    }

    /// Commits if a commit is due and no other connection writes.
    pub fn poll(&mut self, store: &mut Store) -> Result<(), StoreError> {
        let due = if self.is_saved() { HEARTBEAT } else { COMMIT };
        if self.last.elapsed() < due {
            return Ok(());
        }
        if !store.is_writable() {
            self.last = Instant::now();
            return Ok(());
        }
        self.finish(store, MessageState::Streaming, None)
    }

    /// Commits the text with its state, at the end with the final state. May be repeated after a
    /// failure. `stats` is JSON.
    pub fn finish(&mut self, store: &mut Store, state: MessageState, stats: Option<&str>) -> Result<(), StoreError> {
        const OPERATION: &str = "saving the answer";
        let (id, content) = (self.id.0, &self.content);
        // Also after a failure, so that a full disk is not tried again for every token.
        self.last = Instant::now();
        store.known_pictures.forget_oldest();
        store.transaction(OPERATION, |db| {
            let sql =
                "UPDATE message SET content = ?2, touched = ?3, state = ?4, stats = coalesce(?5, stats) WHERE id = ?1";
            let mut update = db.prepare_cached(sql).during(OPERATION)?;
            let changed = update.execute(params![id, content, now(), state.name(), stats]).during(OPERATION)?;
            one(changed, "message", id)?;
            // Incomplete text is not indexed.
            if state == MessageState::Streaming { Ok(()) } else { message::index(db, id, content) }
        })?;
        self.saved = self.content.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_text_is_committed_before_the_end_and_indexed_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let (mut store, _) = Store::open(&path).unwrap();
        let (reader, _) = Store::open(&path).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let mut answer = StreamingMessage::begin(&mut store, chat, None, Some("m")).unwrap();
        // A commit is due now, and then not for an hour.
        answer.append("Once upon");
        answer.last = Instant::now().checked_sub(COMMIT).unwrap();
        answer.poll(&mut store).unwrap();
        assert!(answer.is_saved());
        answer.last = Instant::now() + Duration::from_secs(3600);
        answer.push(&mut store, " a time").unwrap();
        let seen = reader.message(answer.id()).unwrap();
        assert_eq!((&*seen.content, seen.state), ("Once upon", MessageState::Streaming));
        assert!(reader.search("Once").unwrap().is_empty());

        answer.finish(&mut store, MessageState::Stopped, Some("{}")).unwrap();
        let seen = &reader.branch(chat).unwrap()[0];
        assert_eq!((&*seen.content, seen.state), ("Once upon a time", MessageState::Stopped));
        assert_eq!(reader.search("upon a").unwrap().len(), 1);

        let mut more = StreamingMessage::resume(&mut store, seen.id).unwrap();
        more.push(&mut store, ", a frog").unwrap();
        more.finish(&mut store, MessageState::Complete, None).unwrap();
        let seen = &reader.branch(chat).unwrap()[0];
        assert_eq!((&*seen.content, seen.stats.as_deref()), ("Once upon a time, a frog", Some("{}")));
    }
}
