//! A message while a model writes it.

use std::time::{Duration, Instant};

use rusqlite::params;

use super::{
    ChatId, MessageId, MessageState, NewMessage, Store,
    error::{Doing, StoreError},
    message, now, one,
};

/// Text is committed at least this often while there is some.
const COMMIT: Duration = Duration::from_millis(500);
/// And a sign of life given when there is none.
const PULSE: Duration = Duration::from_secs(4);

/// A message that grows. What was pushed is on disk after half a second at the latest, provided that somebody goes on calling
/// [`Streaming::push`] or [`Streaming::tick`] meanwhile.
#[derive(Debug)]
pub struct Streaming {
    id: MessageId,
    content: String,
    /// Bytes of `content` on disk.
    kept: usize,
    last: Instant,
}

impl Streaming {
    /// Begins an answer to `parent`.
    pub fn begin(
        store: &mut Store,
        chat: ChatId,
        parent: Option<MessageId>,
        model: Option<&str>,
    ) -> Result<Self, StoreError> {
        let id = store.add_message(chat, parent, &NewMessage::streaming(model))?;
        Ok(Streaming { id, content: String::new(), kept: 0, last: Instant::now() })
    }

    /// Goes on with a message that ended too early.
    pub fn resume(store: &mut Store, id: MessageId) -> Result<Self, StoreError> {
        let content = store.message(id)?.content;
        let mut this = Streaming { id, kept: content.len(), content, last: Instant::now() };
        this.write(store, MessageState::Streaming, None)?;
        Ok(this)
    }

    /// Its number.
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// The words so far.
    pub fn content(&self) -> &str {
        &self.content
    }

    /// More words, to be committed later.
    pub fn append(&mut self, text: &str) {
        self.content.push_str(text);
    }

    /// More words.
    pub fn push(&mut self, store: &mut Store, text: &str) -> Result<(), StoreError> {
        self.append(text);
        self.tick(store)
    }

    /// Whether all of it is on disk.
    pub fn is_kept(&self) -> bool {
        self.kept == self.content.len()
    }

    /// Commits what is due.
    pub fn tick(&mut self, store: &mut Store) -> Result<(), StoreError> {
        let due = if self.is_kept() { PULSE } else { COMMIT };
        if self.last.elapsed() < due {
            return Ok(());
        }
        self.write(store, MessageState::Streaming, None)
    }

    /// The end, which may be tried again if it fails. `stats` is JSON.
    pub fn finish(&mut self, store: &mut Store, state: MessageState, stats: Option<&str>) -> Result<(), StoreError> {
        self.write(store, state, stats)
    }

    fn write(&mut self, store: &mut Store, state: MessageState, stats: Option<&str>) -> Result<(), StoreError> {
        const DOING: &str = "keeping what the model writes";
        let (id, content) = (self.id.0, &self.content);
        // Also where it fails: a full disk is not asked again with every word.
        self.last = Instant::now();
        store.transaction(DOING, |db| {
            let sql =
                "UPDATE message SET content = ?2, touched = ?3, state = ?4, stats = coalesce(?5, stats) WHERE id = ?1";
            let mut update = db.prepare_cached(sql).doing(DOING)?;
            let changed = update.execute(params![id, content, now(), state.name(), stats]).doing(DOING)?;
            one(changed, "message", id)?;
            // Searches need not find half of it.
            if state == MessageState::Streaming { Ok(()) } else { message::index(db, id, content) }
        })?;
        self.kept = self.content.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_on_disk_before_it_ends_and_found_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let (mut store, _) = Store::open(&path).unwrap();
        let (reader, _) = Store::open(&path).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let mut answer = Streaming::begin(&mut store, chat, None, Some("m")).unwrap();
        answer.push(&mut store, "Once upon").unwrap();
        std::thread::sleep(COMMIT);
        answer.tick(&mut store).unwrap();
        answer.push(&mut store, " a time").unwrap();
        let seen = reader.message(answer.id()).unwrap();
        assert_eq!((&*seen.content, seen.state), ("Once upon", MessageState::Streaming));
        assert!(reader.search("Once").unwrap().is_empty());

        answer.finish(&mut store, MessageState::Stopped, Some("{}")).unwrap();
        let seen = &reader.branch(chat).unwrap()[0];
        assert_eq!((&*seen.content, seen.state), ("Once upon a time", MessageState::Stopped));
        assert_eq!(reader.search("upon a").unwrap().len(), 1);

        let mut more = Streaming::resume(&mut store, seen.id).unwrap();
        more.push(&mut store, ", a frog").unwrap();
        more.finish(&mut store, MessageState::Complete, None).unwrap();
        let seen = &reader.branch(chat).unwrap()[0];
        assert_eq!((&*seen.content, seen.stats.as_deref()), ("Once upon a time, a frog", Some("{}")));
    }
}
