//! Chats of an imported file that already exist in the store, because they were exported from it.

use std::collections::HashMap;

use rusqlite::{Connection, params};

use super::FileChat;
use crate::store::{ChatId, StoreError, rows};

const OPERATION: &str = "comparing chats";

/// A message for comparison: its time if the file has times, its author, and its text.
type ComparedMessage = (Option<i64>, String, String);

/// Finds the chat of the store that contains all messages of `chat`. It was created in the same
/// millisecond or, if the file has no times, has the same title. It may have further messages.
/// Deleted chats do not count, so that an import restores them.
pub(super) fn find(db: &Connection, chat: &FileChat) -> Result<Option<ChatId>, StoreError> {
    let created = (!chat.undated).then_some(chat.created);
    if chat.undated && chat.messages.is_empty() {
        return Ok(None);
    }
    let sql = "SELECT id FROM chat WHERE deleted IS NULL
        AND CASE WHEN ?1 IS NULL THEN title = ?2 ELSE created = ?1 END ORDER BY id";
    for id in rows(db, OPERATION, sql, params![created, chat.title], |row| row.get::<_, i64>(0))? {
        if has_all(db, id, chat)? {
            return Ok(Some(ChatId(id)));
        }
    }
    Ok(None)
}

/// True if the chat `id` contains each message of `chat` at least as often.
fn has_all(db: &Connection, id: i64, chat: &FileChat) -> Result<bool, StoreError> {
    let sql = "SELECT created, role, content FROM message WHERE chat = ?1";
    let dated = |created: i64| (!chat.undated).then_some(created);
    let mut left: HashMap<ComparedMessage, usize> = HashMap::new();
    for message in rows(db, OPERATION, sql, [id], |row| Ok((dated(row.get(0)?), row.get(1)?, row.get(2)?)))? {
        *left.entry(message).or_default() += 1;
    }
    Ok(chat.messages.iter().all(|message| {
        let said = (dated(message.created), message.role.clone(), message.content.clone());
        left.get_mut(&said).and_then(|count| count.checked_sub(1).map(|rest| *count = rest)).is_some()
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crate::store::{
        NewMessage, Store,
        import_export::{FileFormat, markdown},
    };

    #[test]
    fn importing_an_export_again_doubles_nothing() {
        let mut store = Store::in_memory().unwrap();
        let chat = store.add_chat(None, "Be brief.").unwrap();
        store.rename_chat(chat, "Frogs").unwrap();
        let asked = store.add_message(chat, None, &NewMessage::user("Why?")).unwrap();
        let answer = NewMessage::assistant("So.");
        // Two answers with the same text count as two.
        let first = store.add_message(chat, Some(asked), &answer).unwrap();
        store.add_message(chat, Some(asked), &answer).unwrap();
        let json = store.export(&[chat]).unwrap();
        let text = markdown(&store.chat(chat).unwrap(), &store.branch(chat).unwrap(), &HashMap::new(), true);
        let files = [(FileFormat::Json, &json), (FileFormat::Markdown, &text)];

        for (form, file) in files {
            let imported = store.import(form, file).unwrap();
            assert_eq!((imported.added.len(), imported.known), (0, vec![chat]), "{form:?}");
        }
        // The chat may have further messages and a new title, because a file with times does not
        // need the title.
        store.add_message(chat, Some(first), &NewMessage::user("And then?")).unwrap();
        store.rename_chat(chat, "Toads").unwrap();
        assert_eq!(store.import(FileFormat::Json, &json).unwrap().known, [chat]);

        // Deleted and changed chats do not count.
        store.delete_chat(chat).unwrap();
        let copy = store.import(FileFormat::Json, &json).unwrap().added[0];
        assert_eq!(store.export(&[copy]).unwrap(), json);
        assert_eq!(store.import(FileFormat::Json, &json).unwrap().known, [copy], "once");
        let changed = store.branch(copy).unwrap()[0].id;
        store.db.execute("UPDATE message SET content = 'Why not?' WHERE id = ?1", [changed.0]).unwrap();
        assert_eq!(store.import(FileFormat::Json, &json).unwrap().added.len(), 1);
    }
}
