//! Chats: their list, and the properties of a chat other than its messages.

use rusqlite::{OptionalExtension, Row, params};

use super::{
    FolderId, MessageId, Store,
    error::{OperationContext, StoreError},
    now, one, rows,
};

/// Row id of a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChatId(pub(super) i64);

impl ChatId {
    /// The number of this chat in the settings.
    pub fn number(self) -> i64 {
        self.0
    }
}

/// A chat without its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chat {
    /// Row id.
    pub id: ChatId,
    /// Title; empty until the first message, or until the user sets one.
    pub title: String,
    /// The folder that contains the chat.
    pub folder: Option<FolderId>,
    /// `true` if the chat stays at the top of the list.
    pub pinned: bool,
    /// Time of creation, in milliseconds since 1970.
    pub created: i64,
    /// Time of the latest message, in milliseconds since 1970.
    pub updated: i64,
    /// Key of the model used last.
    pub model: Option<String>,
    /// System prompt.
    pub system_prompt: String,
    /// Sampling settings as JSON; `None`: the model's own.
    pub sampling: Option<String>,
    /// Text typed but not sent.
    pub draft: String,
    /// Last message of the visible branch.
    pub leaf: Option<MessageId>,
    /// `true` if the model may call tools.
    pub tools: bool,
}

/// Longest title, in characters.
const TITLE: usize = 48;

/// Columns, as [`Chat::read`] expects them.
const COLUMNS: &str = "id, title, folder, pinned, created, updated, model, system_prompt, sampling, draft, leaf, tools";

impl Chat {
    fn read(row: &Row<'_>) -> rusqlite::Result<Chat> {
        Ok(Chat {
            id: ChatId(row.get(0)?),
            title: row.get(1)?,
            folder: row.get::<_, Option<i64>>(2)?.map(FolderId),
            pinned: row.get(3)?,
            created: row.get(4)?,
            updated: row.get(5)?,
            model: row.get(6)?,
            system_prompt: row.get(7)?,
            sampling: row.get(8)?,
            draft: row.get(9)?,
            leaf: row.get::<_, Option<i64>>(10)?.map(MessageId),
            tools: row.get(11)?,
        })
    }
}

impl Store {
    /// Adds an empty chat.
    pub fn add_chat(&mut self, model: Option<&str>, system_prompt: &str) -> Result<ChatId, StoreError> {
        let sql = "INSERT INTO chat (title, created, updated, model, system_prompt) VALUES ('', ?1, ?1, ?2, ?3)";
        let added = self.db.execute(sql, params![now(), model, system_prompt]).during("creating a chat");
        added.map_err(|error| error.of_file(&self.path))?;
        Ok(ChatId(self.db.last_insert_rowid()))
    }

    /// All chats that are not deleted: pinned chats first, then by latest change.
    pub fn chats(&self) -> Result<Vec<Chat>, StoreError> {
        let sql =
            format!("SELECT {COLUMNS} FROM chat WHERE deleted IS NULL ORDER BY pinned DESC, updated DESC, id DESC");
        rows(&self.db, "reading the list of chats", &sql, [], Chat::read)
    }

    /// The chat with this number; `None` if it is deleted or does not exist.
    pub fn find_chat(&self, number: i64) -> Result<Option<Chat>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM chat WHERE id = ?1 AND deleted IS NULL");
        self.db.query_row(&sql, [number], Chat::read).optional().during("reading a chat")
    }

    /// Reads a chat, even a deleted one.
    pub fn chat(&self, id: ChatId) -> Result<Chat, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM chat WHERE id = ?1");
        let found = self.db.query_row(&sql, [id.0], Chat::read).optional().during("reading a chat")?;
        found.ok_or(StoreError::Missing { what: "chat", id: id.0 })
    }

    /// Sets a title chosen by the user.
    pub fn rename_chat(&mut self, id: ChatId, title: &str) -> Result<(), StoreError> {
        self.change_chat(id, "renaming a chat", "title = ?2, titled = 1", title)
    }

    /// Sets a title, unless the user has chosen one.
    pub fn suggest_title(&mut self, id: ChatId, title: &str) -> Result<(), StoreError> {
        self.change_chat(id, "naming a chat", "title = CASE titled WHEN 0 THEN ?2 ELSE title END", title)
    }

    /// True if the user has chosen the title.
    pub fn is_titled(&self, id: ChatId) -> Result<bool, StoreError> {
        let titled = self.db.query_row("SELECT titled FROM chat WHERE id = ?1", [id.0], |row| row.get(0)).optional();
        titled.during("reading a chat")?.ok_or(StoreError::Missing { what: "chat", id: id.0 })
    }

    /// Pins a chat to the top of the list, or unpins it.
    pub fn pin_chat(&mut self, id: ChatId, pinned: bool) -> Result<(), StoreError> {
        self.change_chat(id, "pinning a chat", "pinned = ?2", pinned)
    }

    /// Moves a chat into a folder, or out of all folders.
    pub fn move_chat(&mut self, id: ChatId, folder: Option<FolderId>) -> Result<(), StoreError> {
        self.change_chat(id, "moving a chat", "folder = ?2", folder.map(|folder| folder.0))
    }

    /// Saves text that was typed but not sent.
    pub fn set_draft(&mut self, id: ChatId, draft: &str) -> Result<(), StoreError> {
        self.change_chat(id, "saving a draft", "draft = ?2", draft)
    }

    /// Sets the key of the model used last.
    pub fn set_chat_model(&mut self, id: ChatId, model: Option<&str>) -> Result<(), StoreError> {
        self.change_chat(id, "changing a chat's model", "model = ?2", model)
    }

    /// Sets the system prompt of a chat.
    pub fn set_system_prompt(&mut self, id: ChatId, prompt: &str) -> Result<(), StoreError> {
        self.change_chat(id, "changing a system prompt", "system_prompt = ?2", prompt)
    }

    /// Sets the sampling settings of a chat as JSON; `None`: the model's own.
    pub fn set_chat_sampling(&mut self, id: ChatId, sampling: Option<&str>) -> Result<(), StoreError> {
        self.change_chat(id, "changing sampling settings", "sampling = ?2", sampling)
    }

    /// Sets whether the model may call tools in a chat.
    pub fn set_chat_tools(&mut self, id: ChatId, tools: bool) -> Result<(), StoreError> {
        self.change_chat(id, "turning tools of a chat on or off", "tools = ?2", tools)
    }

    /// Marks a chat as deleted. [`Store::restore_chat`] undoes it until [`Store::purge`] removes
    /// the chat.
    pub fn delete_chat(&mut self, id: ChatId) -> Result<(), StoreError> {
        self.change_chat(id, "deleting a chat", "deleted = ?2", now())
    }

    /// Undoes [`Store::delete_chat`].
    pub fn restore_chat(&mut self, id: ChatId) -> Result<(), StoreError> {
        self.change_chat(id, "restoring a chat", "deleted = ?2", None::<i64>)
    }

    /// Chats that can be restored, the last deleted first.
    pub fn deleted_chats(&self) -> Result<Vec<Chat>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM chat WHERE deleted IS NOT NULL ORDER BY deleted DESC");
        rows(&self.db, "reading deleted chats", &sql, [], Chat::read)
    }

    /// Removes a chat without messages, settings and draft. Returns `true` if it was removed.
    pub fn remove_empty_chat(&mut self, id: ChatId) -> Result<bool, StoreError> {
        let sql =
            "DELETE FROM chat WHERE id = ?1 AND titled = 0 AND pinned = 0 AND folder IS NULL AND system_prompt = ''
            AND sampling IS NULL AND trim(draft) = '' AND tools = 0
            AND NOT EXISTS (SELECT 1 FROM message WHERE chat = ?1)
            AND NOT EXISTS (SELECT 1 FROM attachment WHERE chat = ?1)";
        Ok(self.db.execute(sql, [id.0]).during("removing an empty chat")? == 1)
    }

    /// Removes chats that were deleted more than `age` milliseconds ago, and returns their number.
    pub fn purge(&mut self, age: i64) -> Result<usize, StoreError> {
        const OPERATION: &str = "removing deleted chats";
        self.transaction(OPERATION, |db| {
            let before = now().saturating_sub(age);
            let sql = "DELETE FROM message_text WHERE rowid IN (SELECT message.id FROM message
                JOIN chat ON chat.id = message.chat WHERE chat.deleted <= ?1)";
            db.execute(sql, [before]).during(OPERATION)?;
            db.execute("DELETE FROM chat WHERE deleted <= ?1", [before]).during(OPERATION)
        })
    }

    fn change_chat(
        &mut self,
        id: ChatId,
        operation: &'static str,
        set: &str,
        value: impl rusqlite::ToSql,
    ) -> Result<(), StoreError> {
        let changed = self.db.execute(&format!("UPDATE chat SET {set} WHERE id = ?1"), params![id.0, value]);
        one(changed.during(operation).map_err(|error| error.of_file(&self.path))?, "chat", id.0)
    }
}

/// Makes a title from the first line of `text`.
pub fn title(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(TITLE) {
        None => line.to_owned(),
        Some((end, _)) => {
            let at = line[..end].rfind(' ').filter(|space| *space > TITLE / 2).unwrap_or(end);
            format!("{}…", line[..at].trim_end())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::NewMessage;

    #[test]
    fn chats_are_named_pinned_moved_deleted_and_restored() {
        let mut store = Store::in_memory().unwrap();
        let (a, b) = (store.add_chat(Some("m"), "Be kind.").unwrap(), store.add_chat(None, "").unwrap());
        let listed = |store: &Store| store.chats().unwrap().into_iter().map(|chat| chat.id).collect::<Vec<_>>();
        assert_eq!(listed(&store), [b, a]);
        store.pin_chat(a, true).unwrap();
        assert_eq!(listed(&store), [a, b]);

        store.suggest_title(a, "A frog").unwrap();
        assert!(!store.is_titled(a).unwrap(), "a suggestion is none of the user's");
        store.rename_chat(a, "My frog").unwrap();
        assert!(store.is_titled(a).unwrap());
        store.suggest_title(a, "Another").unwrap();
        store.set_draft(a, "and then?").unwrap();
        let folder = store.add_folder("Animals").unwrap();
        store.move_chat(a, Some(folder)).unwrap();
        let chat = store.chat(a).unwrap();
        assert_eq!((&*chat.title, &*chat.draft, chat.folder), ("My frog", "and then?", Some(folder)));
        assert_eq!((chat.model.as_deref(), &*chat.system_prompt), (Some("m"), "Be kind."));
        store.rename_folder(folder, "Beasts").unwrap();
        assert_eq!(store.folders().unwrap()[0].name, "Beasts");
        store.remove_folder(folder).unwrap();
        assert_eq!(store.chat(a).unwrap().folder, None);

        store.add_message(a, None, &NewMessage::user("hello there")).unwrap();
        store.delete_chat(a).unwrap();
        assert_eq!(listed(&store), [b]);
        assert!(store.search("hello").unwrap().is_empty(), "a deleted chat is not found");
        assert_eq!(store.purge(60_000).unwrap(), 0);
        assert_eq!(store.deleted_chats().unwrap()[0].id, a);
        store.restore_chat(a).unwrap();
        assert_eq!(listed(&store), [a, b]);
        store.delete_chat(a).unwrap();
        assert_eq!(store.purge(-1).unwrap(), 1);
        assert!(matches!(store.restore_chat(a), Err(StoreError::Missing { what: "chat", .. })));
        let left: i64 = store.db.query_row("SELECT count(*) FROM message_text", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0);
    }

    #[test]
    fn only_a_chat_with_nothing_in_it_is_removed_as_empty() {
        type Change = fn(&mut Store, ChatId) -> Result<(), StoreError>;
        let mut store = Store::in_memory().unwrap();
        let changes: [Change; 7] = [
            |store, id| store.rename_chat(id, "A frog"),
            |store, id| store.pin_chat(id, true),
            |store, id| store.set_draft(id, "and then?"),
            |store, id| store.set_system_prompt(id, "Be kind."),
            |store, id| store.set_chat_sampling(id, Some("{}")),
            |store, id| store.set_chat_tools(id, true),
            |store, id| store.add_message(id, None, &NewMessage::user("hello")).map(|_| ()),
        ];
        for change in changes {
            let chat = store.add_chat(None, "").unwrap();
            change(&mut store, chat).unwrap();
            assert!(!store.remove_empty_chat(chat).unwrap(), "{:?}", store.chat(chat));
        }
        let kept = store.chats().unwrap().len();
        let chat = store.add_chat(None, "").unwrap();
        store.set_draft(chat, " \n").unwrap();
        store.set_draft(chat, "").unwrap();
        assert!(store.remove_empty_chat(chat).unwrap() && !store.remove_empty_chat(chat).unwrap());
        assert_eq!(store.chats().unwrap().len(), kept);
    }

    #[test]
    fn title_is_one_short_line() {
        assert_eq!(title("\n  A cat \nand a boat"), "A cat");
        let long = title("Tell me everything there is to know about the ways of penguins in winter");
        assert!(long.ends_with('…') && long.chars().count() <= TITLE + 1 && !long.contains("winter"), "{long}");
    }
}
