//! Schema versions of the file, and the migrations between them.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::{OperationContext, StoreError};

/// Migration `n` turns version `n` into version `n + 1`.
const STEPS: [&str; 6] = [
    include_str!("migrations/1.sql"),
    include_str!("migrations/2.sql"),
    include_str!("migrations/3.sql"),
    include_str!("migrations/4.sql"),
    include_str!("migrations/5.sql"),
    include_str!("migrations/6.sql"),
];

/// Migrates the file to the current version. Each migration is one transaction.
pub(super) fn migrate(db: &mut Connection, path: &Path) -> Result<(), StoreError> {
    const OPERATION: &str = "upgrading the chat file";
    let known = STEPS.len() as i64;
    loop {
        // If another window migrates at the same time, the second window finds the migration done.
        let step = db.transaction_with_behavior(TransactionBehavior::Immediate).during(OPERATION)?;
        let found: i64 = step.query_row("PRAGMA user_version", [], |row| row.get(0)).during(OPERATION)?;
        if found > known {
            return Err(StoreError::Newer { path: path.to_owned(), found, known });
        }
        if found > 0 && !has_tables(&step).during(OPERATION)? {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            let source = rusqlite::Error::SqliteFailure(code, Some("the tables of chats are missing".to_owned()));
            return Err(StoreError::Database { operation: OPERATION, file: None, source });
        }
        let Some(sql) = usize::try_from(found).ok().and_then(|found| STEPS.get(found)) else { return Ok(()) };
        step.execute_batch(sql).during(OPERATION)?;
        step.pragma_update(None, "user_version", found + 1).during(OPERATION)?;
        step.commit().during(OPERATION)?;
    }
}

/// `true` if the file has the tables of every version. A truncated file may lack them.
fn has_tables(db: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) = 2 FROM sqlite_schema WHERE type = 'table' AND name IN ('chat', 'message')";
    db.query_row(sql, [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{KeptWord, Store};

    #[test]
    fn migrate_refuses_a_file_of_a_later_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        drop(Store::open(&path).unwrap());
        let db = Connection::open(&path).unwrap();
        db.pragma_update(None, "user_version", 99).unwrap();
        drop(db);
        let before = std::fs::read(&path).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 99, known: 6, .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn chats_from_before_tools_keep_their_messages_and_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch(STEPS[0]).unwrap();
        db.execute_batch(STEPS[1]).unwrap();
        db.pragma_update(None, "user_version", 2).unwrap();
        db.execute_batch(
            "INSERT INTO chat (id, title, created, updated, leaf) VALUES (1, 'old', 1, 1, 1);
            INSERT INTO message (id, chat, role, content, created, touched, state) VALUES (1, 1, 'user', 'Hi', 1, 1, 'complete')",
        )
        .unwrap();
        drop(db);
        let (mut store, _) = Store::open(&path).unwrap();
        let chat = store.chats().unwrap().remove(0);
        assert_eq!((&*chat.title, chat.tools), ("old", false));
        let said = store.branch(chat.id).unwrap();
        assert_eq!((&*said[0].content, &said[0].tools), ("Hi", &None));
        store.set_chat_tools(chat.id, true).unwrap();
        assert!(store.chat(chat.id).unwrap().tools);
        assert!(!store.has_kept_words().unwrap(), "nor were words of neurons kept");
        let word = KeptWord { layer: 0, neuron: 1, word: "hi".to_owned(), times: 1 };
        store.add_kept_words("m", std::slice::from_ref(&word)).unwrap();
        assert_eq!(store.kept_words("m", 0, 1).unwrap(), [word]);
    }

    #[test]
    fn migrate_tolerates_concurrent_windows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/down/chats.db");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(Store::open(&path).unwrap().1.is_none()));
            }
        });
    }
}
