//! Messages: one tree per chat, and the visible branch.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    ChatId, MessageTools, Store, ToolCall, ToolResult,
    error::{OperationContext, StoreError},
    now, one, rows,
};

/// Row id of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub(super) i64);

impl MessageId {
    /// The number of this message in the database.
    pub fn number(self) -> i64 {
        self.0
    }
}

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool. The message is the result of a call.
    Tool,
}

/// Life-cycle state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageState {
    /// Ended by the model, or written by the user.
    Complete,
    /// Being generated.
    Streaming,
    /// Ended by the user.
    Stopped,
    /// Ended by the length limit or by a full context.
    Truncated,
    /// Ended by an error.
    Failed,
    /// Cut off because the program that generated it ended.
    Interrupted,
}

impl Speaker {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Speaker::User => "user",
            Speaker::Assistant => "assistant",
            Speaker::Tool => "tool",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Speaker> {
        [Speaker::User, Speaker::Assistant, Speaker::Tool].into_iter().find(|it| it.name() == name)
    }
}

impl MessageState {
    const ALL: [MessageState; 6] = [
        MessageState::Complete,
        MessageState::Streaming,
        MessageState::Stopped,
        MessageState::Truncated,
        MessageState::Failed,
        MessageState::Interrupted,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            MessageState::Complete => "complete",
            MessageState::Streaming => "streaming",
            MessageState::Stopped => "stopped",
            MessageState::Truncated => "cut",
            MessageState::Failed => "failed",
            MessageState::Interrupted => "interrupted",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<MessageState> {
        MessageState::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// A streaming message counts as interrupted after this many milliseconds without an update of
/// `touched`.
const HEARTBEAT_TIMEOUT: i64 = 15_000;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Row id.
    pub id: MessageId,
    /// The message it answers.
    pub parent: Option<MessageId>,
    /// Author of a message.
    pub speaker: Speaker,
    /// Text.
    pub content: String,
    /// Time of creation, in milliseconds since 1970.
    pub created: i64,
    /// Life-cycle state.
    pub state: MessageState,
    /// `true` if the user edited it.
    pub edited: bool,
    /// Name of the model that generated it.
    pub model: Option<String>,
    /// Statistics of the generation, as JSON.
    pub stats: Option<String>,
    /// Its tool calls, or the call that it answers.
    pub tools: Option<MessageTools>,
    /// Number of this version, from 1, and number of versions.
    pub version: (usize, usize),
}

/// A message to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Author.
    pub speaker: Speaker,
    /// Text so far.
    pub content: String,
    /// Life-cycle state.
    pub state: MessageState,
    /// Name of the model that generates it.
    pub model: Option<String>,
}

impl NewMessage {
    /// A complete message of the user.
    pub fn user(content: &str) -> Self {
        let content = content.to_owned();
        NewMessage { speaker: Speaker::User, content, state: MessageState::Complete, model: None }
    }

    /// A complete answer.
    pub fn assistant(content: &str) -> Self {
        NewMessage { speaker: Speaker::Assistant, ..Self::user(content) }
    }

    /// An empty message to be filled by a model.
    pub fn streaming(model: Option<&str>) -> Self {
        NewMessage {
            speaker: Speaker::Assistant,
            content: String::new(),
            state: MessageState::Streaming,
            model: model.map(str::to_owned),
        }
    }
}

/// Columns, as [`StoredMessage::read`] expects them.
const COLUMNS: &str = "message.id, parent, role, content, created, state, edited, model, stats, touched, tools,
    (SELECT count(*) FROM message AS other WHERE other.chat = message.chat AND other.parent IS message.parent
        AND other.id <= message.id),
    (SELECT count(*) FROM message AS other WHERE other.chat = message.chat AND other.parent IS message.parent)";

impl StoredMessage {
    fn read(row: &Row<'_>) -> rusqlite::Result<StoredMessage> {
        let (role, state): (String, String) = (row.get(2)?, row.get(5)?);
        let unknown =
            |at, what: String| rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, what.into());
        let state = MessageState::from_name(&state).ok_or_else(|| unknown(5, format!("unknown state {state:?}")))?;
        let alive = row.get::<_, i64>(9)?.saturating_add(HEARTBEAT_TIMEOUT) > now();
        Ok(StoredMessage {
            id: MessageId(row.get(0)?),
            parent: row.get::<_, Option<i64>>(1)?.map(MessageId),
            speaker: Speaker::from_name(&role).ok_or_else(|| unknown(2, format!("unknown role {role:?}")))?,
            content: row.get(3)?,
            created: row.get(4)?,
            state: if state == MessageState::Streaming && !alive { MessageState::Interrupted } else { state },
            edited: row.get(6)?,
            model: row.get(7)?,
            stats: row.get(8)?,
            // Ignore tool data of a newer version.
            tools: row.get::<_, Option<String>>(10)?.and_then(|json| serde_json::from_str(&json).ok()),
            version: (row.get::<_, i64>(11)?.max(1) as usize, row.get::<_, i64>(12)?.max(1) as usize),
        })
    }

    /// Its tool calls.
    pub fn calls(&self) -> &[ToolCall] {
        if let Some(MessageTools::Calls(calls)) = &self.tools { calls } else { &[] }
    }

    /// The tool call that it answers.
    pub fn result(&self) -> Option<&ToolResult> {
        if let Some(MessageTools::Result(result)) = &self.tools { Some(result) } else { None }
    }
}

/// Indexes a message's text for [`Store::search`].
pub(super) fn index(db: &Connection, id: i64, content: &str) -> Result<(), StoreError> {
    const OPERATION: &str = "indexing a message";
    db.prepare_cached("DELETE FROM message_text WHERE rowid = ?1")
        .during(OPERATION)?
        .execute([id])
        .during(OPERATION)?;
    let mut insert =
        db.prepare_cached("INSERT INTO message_text (rowid, content) VALUES (?1, ?2)").during(OPERATION)?;
    insert.execute(params![id, content]).during(OPERATION)?;
    Ok(())
}

/// Marks all streaming messages as interrupted, and indexes their text.
pub(super) fn interrupt(db: &Connection) -> Result<(), StoreError> {
    const OPERATION: &str = "marking interrupted answers";
    let names = [MessageState::Streaming, MessageState::Interrupted].map(MessageState::name);
    let sql = "SELECT id, content FROM message WHERE state = ?1";
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    for (id, content) in rows(db, OPERATION, sql, [names[0]], read)? {
        db.execute("UPDATE message SET state = ?2 WHERE id = ?1", params![id, names[1]]).during(OPERATION)?;
        index(db, id, &content)?;
    }
    Ok(())
}

pub(super) fn insert(
    db: &Connection,
    chat: ChatId,
    parent: Option<MessageId>,
    message: &NewMessage,
) -> Result<MessageId, StoreError> {
    const OPERATION: &str = "adding a message";
    if let Some(parent) = parent {
        let sql = "SELECT 1 FROM message WHERE id = ?1 AND chat = ?2";
        let found = db.query_row(sql, [parent.0, chat.0], |_| Ok(())).optional().during(OPERATION)?;
        found.ok_or(StoreError::Missing { what: "message", id: parent.0 })?;
    }
    let now = now();
    let sql = "INSERT INTO message (chat, parent, role, content, created, touched, state, model)
        VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7)";
    let NewMessage { speaker, content, state, model } = message;
    let parent = parent.map(|parent| parent.0);
    let sets = db.execute("UPDATE chat SET updated = ?2 WHERE id = ?1", [chat.0, now]).during(OPERATION)?;
    one(sets, "chat", chat.0)?;
    db.execute(sql, params![chat.0, parent, speaker.name(), content, now, state.name(), model]).during(OPERATION)?;
    let id = MessageId(db.last_insert_rowid());
    db.execute("UPDATE chat SET leaf = ?2 WHERE id = ?1", [chat.0, id.0]).during(OPERATION)?;
    if *state != MessageState::Streaming {
        index(db, id.0, content)?;
    }
    Ok(id)
}

impl Store {
    /// Adds a message after `parent` and shows the branch that ends in it. If `parent` has an
    /// answer already, the message is a further version.
    pub fn add_message(
        &mut self,
        chat: ChatId,
        parent: Option<MessageId>,
        message: &NewMessage,
    ) -> Result<MessageId, StoreError> {
        self.transaction("adding a message", |db| insert(db, chat, parent, message))
    }

    /// Messages of the visible branch, first to last.
    pub fn branch(&self, chat: ChatId) -> Result<Vec<StoredMessage>, StoreError> {
        let sql = format!(
            "WITH RECURSIVE up (id, depth) AS (
                SELECT message.id, 0 FROM message JOIN chat ON chat.leaf = message.id WHERE chat.id = ?1
                UNION ALL SELECT message.parent, depth + 1 FROM message JOIN up ON message.id = up.id
                    WHERE message.parent IS NOT NULL)
            SELECT {COLUMNS} FROM up JOIN message ON message.id = up.id ORDER BY depth DESC"
        );
        rows(&self.db, "reading a chat", &sql, [chat.0], StoredMessage::read)
    }

    /// All messages of a chat, in the order they were added.
    pub fn messages(&self, chat: ChatId) -> Result<Vec<StoredMessage>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM message WHERE chat = ?1 ORDER BY message.id");
        rows(&self.db, "reading a chat", &sql, [chat.0], StoredMessage::read)
    }

    /// Reads a message.
    pub fn message(&self, id: MessageId) -> Result<StoredMessage, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM message WHERE id = ?1");
        let found = self.db.query_row(&sql, [id.0], StoredMessage::read).optional().during("reading a message")?;
        found.ok_or(StoreError::Missing { what: "message", id: id.0 })
    }

    /// Shows version `version` of a message, counted from 1, with the latest branch below it.
    pub fn show_version(&mut self, of: MessageId, version: usize) -> Result<(), StoreError> {
        const OPERATION: &str = "showing another version";
        self.transaction(OPERATION, |db| {
            let sql = "SELECT other.id FROM message JOIN message AS other
                ON other.chat = message.chat AND other.parent IS message.parent
                WHERE message.id = ?1 ORDER BY other.id LIMIT 1 OFFSET ?2";
            let nth = i64::try_from(version).unwrap_or(i64::MAX).max(1) - 1;
            let sibling = db.query_row(sql, [of.0, nth], |row| row.get::<_, i64>(0)).optional().during(OPERATION)?;
            let sibling = sibling.ok_or(StoreError::Missing { what: "version", id: nth + 1 })?;
            let sql = "WITH RECURSIVE down (id) AS (
                    SELECT ?1 UNION ALL SELECT message.id FROM message JOIN down ON message.parent = down.id)
                UPDATE chat SET leaf = (SELECT max(id) FROM down) WHERE id = (SELECT chat FROM message WHERE id = ?1)";
            db.execute(sql, [sibling]).during(OPERATION)?;
            Ok(())
        })
    }

    /// Adds the user's edit of an answer as another version, and shows it. The model's own text
    /// stays a version.
    pub fn add_edited_version(&mut self, of: MessageId, content: &str) -> Result<MessageId, StoreError> {
        const OPERATION: &str = "changing a message";
        self.transaction(OPERATION, |db| {
            let sql = "INSERT INTO message (chat, parent, role, content, created, touched, state, edited, model)
                SELECT chat, parent, role, ?2, ?3, ?3, iif(state = ?4, state, ?5), 1, model FROM message WHERE id = ?1";
            let [complete, stopped] = [MessageState::Complete, MessageState::Stopped].map(MessageState::name);
            let added = db.execute(sql, params![of.0, content, now(), complete, stopped]).during(OPERATION)?;
            one(added, "message", of.0)?;
            let id = MessageId(db.last_insert_rowid());
            let sql = "UPDATE chat SET leaf = ?1, updated = ?2 WHERE id = (SELECT chat FROM message WHERE id = ?1)";
            db.execute(sql, [id.0, now()]).during(OPERATION)?;
            index(db, id.0, content)?;
            Ok(id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(store: &Store, chat: ChatId) -> Vec<(String, (usize, usize))> {
        store.branch(chat).unwrap().into_iter().map(|message| (message.content, message.version)).collect()
    }

    fn say(store: &mut Store, chat: ChatId, parent: Option<MessageId>, words: &str) -> MessageId {
        store.add_message(chat, parent, &NewMessage::user(words)).unwrap()
    }

    #[test]
    fn show_version_shows_the_branch_below_the_version() {
        let (mut store, chat) = Store::with_chat();
        let other = store.add_chat(None, "").unwrap();
        say(&mut store, other, None, "elsewhere");
        let first = say(&mut store, chat, None, "a");
        let b1 = say(&mut store, chat, Some(first), "b1");
        say(&mut store, chat, Some(b1), "c");
        let b2 = say(&mut store, chat, Some(first), "b2");
        let line = |words: &[(&str, (usize, usize))]| {
            words.iter().map(|(text, version)| ((*text).to_owned(), *version)).collect::<Vec<_>>()
        };
        assert_eq!(words(&store, chat), line(&[("a", (1, 1)), ("b2", (2, 2))]));
        store.show_version(b2, 1).unwrap();
        assert_eq!(words(&store, chat), line(&[("a", (1, 1)), ("b1", (1, 2)), ("c", (1, 1))]));
        assert!(matches!(store.show_version(b2, 3), Err(StoreError::Missing { what: "version", id: 3 })));

        // Another first message is a version of the first message.
        say(&mut store, chat, None, "z");
        assert_eq!(words(&store, chat), line(&[("z", (2, 2))]));
        store.show_version(first, 1).unwrap();
        assert_eq!(words(&store, chat)[1].0, "b2", "the latest of what was said after `a`");
        let edited = store.add_edited_version(b1, "b1!").unwrap();
        assert_eq!(words(&store, chat), line(&[("a", (1, 2)), ("b1!", (3, 3))]));
        assert!(store.message(edited).unwrap().edited && !store.message(b1).unwrap().edited);
        assert_eq!(store.search("b1").unwrap().len(), 2, "both are found");
        store.show_version(edited, 1).unwrap();
        assert_eq!(words(&store, chat), line(&[("a", (1, 2)), ("b1", (1, 3)), ("c", (1, 1))]));
        assert!(matches!(
            store.add_message(other, Some(first), &NewMessage::user("")),
            Err(StoreError::Missing { what: "message", .. })
        ));
    }

    #[test]
    fn streaming_message_without_updates_counts_as_interrupted() {
        let (mut store, chat) = Store::with_chat();
        let id = store.add_message(chat, None, &NewMessage::streaming(Some("m"))).unwrap();
        assert_eq!(store.message(id).unwrap().state, MessageState::Streaming);
        store.db.execute("UPDATE message SET touched = touched - 20000", []).unwrap();
        let message = store.message(id).unwrap();
        assert_eq!((message.state, message.model.as_deref()), (MessageState::Interrupted, Some("m")));
    }
}
