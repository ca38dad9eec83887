//! Recovery of a damaged file. The file is moved aside, and its readable rows are copied.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, types::Value};

use super::{
    AttachmentId, MessageState, Speaker, Store,
    error::{OperationContext, StoreError},
    message, now, passage, picture,
};

/// Result of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// New path of the damaged file.
    pub damaged: PathBuf,
    /// Number of chats copied.
    pub chats: usize,
    /// Number of messages copied.
    pub messages: usize,
}

/// `true` if the file itself is damaged, and not just busy, on a full disk or forbidden.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Moves the file at `path` aside, creates a new file and copies the readable rows.
pub(super) fn recover(path: &Path) -> Result<(Store, RecoveryReport), StoreError> {
    let damaged = set_aside(path)?;
    let mut store = Store::connect(path)?;
    let (chats, messages) = match Connection::open_with_flags(&damaged, OpenFlags::SQLITE_OPEN_READ_ONLY) {
        Ok(damaged) => {
            // Without this setting, SQLite reads nothing of a truncated file. If the setting fails,
            // fewer rows are copied.
            let _ = damaged.pragma_update(None, "writable_schema", "ON");
            copy(&damaged, &mut store)?
        }
        Err(_) => (0, 0),
    };
    Ok((store, RecoveryReport { damaged, chats, messages }))
}

/// Copies the readable rows of the file at `path` into `store` and leaves the file unchanged.
/// Returns the number of chats.
pub(super) fn copy_unchanged(path: &Path, store: &mut Store) -> Result<usize, StoreError> {
    // In a read-only folder, SQLite reads only files declared immutable.
    for how in ["mode=ro", "mode=ro&immutable=1"] {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let Ok(file) = Connection::open_with_flags(address(path, how), flags) else { continue };
        if file.query_row("SELECT count(*) FROM chat", [], |_| Ok(())).is_ok() {
            return copy(&file, store).map(|(chats, _)| chats);
        }
    }
    Ok(0)
}

/// The file as an SQLite URI.
fn address(path: &Path, how: &str) -> String {
    let path = path.display().to_string();
    let path = if cfg!(windows) { format!("/{}", path.replace('\\', "/")) } else { path };
    let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    format!("file:{path}?{how}")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Renames the file and SQLite's two companion files.
fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let stem = format!(".damaged-{}", now());
    let damaged = (0..).map(|n| with_suffix(path, &format!("{stem}-{n}"))).find(|damaged| !damaged.exists());
    let damaged = damaged.unwrap_or_else(|| with_suffix(path, &stem));
    for suffix in ["", "-wal", "-shm"] {
        let (from, to) = (with_suffix(path, suffix), with_suffix(&damaged, suffix));
        if suffix.is_empty() || from.exists() {
            let moved = std::fs::rename(&from, &to);
            moved.map_err(|source| StoreError::File {
                operation: "moving the damaged file away",
                path: from,
                source,
            })?;
        }
    }
    Ok(damaged)
}

/// Reads the rows of a damaged table from both ends, so that a broken page in the middle costs only
/// its own rows. Each row has the values of `columns`; the first value is the row id.
fn rows(damaged: &Connection, table: &str, columns: &str) -> Vec<Vec<Value>> {
    let mut all: Vec<Vec<Value>> = Vec::new();
    for order in ["ASC", "DESC"] {
        let Ok(mut query) = damaged.prepare(&format!("SELECT {columns} FROM {table} NOT INDEXED ORDER BY 1 {order}"))
        else {
            continue;
        };
        let width = query.column_count();
        let Ok(mut rows) = query.query([]) else { continue };
        // The first error ends the scan in this direction.
        while let Ok(Some(row)) = rows.next() {
            let values = (0..width).map(|at| row.get::<_, Value>(at).unwrap_or(Value::Null));
            all.push(values.collect());
        }
    }
    let number = |row: &Vec<Value>| match row.first() {
        Some(Value::Integer(id)) => *id,
        _ => i64::MIN,
    };
    all.sort_by_key(number);
    all.dedup_by_key(|row| number(row));
    all.retain(|row| number(row) != i64::MIN);
    all
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn integer(value: &Value) -> i64 {
    match value {
        Value::Integer(n) => *n,
        _ => 0,
    }
}

/// The operation named in errors.
const OPERATION: &str = "recovering the damaged chats";

/// Copies chats and messages. A message whose chat is lost gets a new chat.
fn copy(damaged: &Connection, store: &mut Store) -> Result<(usize, usize), StoreError> {
    let chats = rows(
        damaged,
        "chat",
        "id, title, titled, pinned, created, updated, deleted, model, system_prompt, sampling, draft, leaf, tools",
    );
    let messages =
        rows(damaged, "message", "id, chat, parent, role, content, created, state, edited, model, stats, tools");
    let presets = rows(damaged, "preset", "id, name, model, system_prompt, sampling");
    let files = rows(damaged, "attachment", "id, chat, message, name, kind, whole");
    let passages = rows(damaged, "passage", "id, attachment, place, text");
    let pictures = rows(damaged, "picture", "id, attachment");
    let given = rows(damaged, "given", "message * 4294967296 + passage, message, passage");
    store.transaction(OPERATION, |db| {
        copy_chats(db, &chats)?;
        let saved = copy_messages(db, &messages)?;
        show_leaves(db, &chats)?;
        copy_files(db, &files, &passages, &given)?;
        copy_pictures(damaged, db, &pictures)?;
        copy_presets(db, &presets)?;
        let chats: i64 = db.query_row("SELECT count(*) FROM chat", [], |row| row.get(0)).during(OPERATION)?;
        Ok((usize::try_from(chats).unwrap_or(0), saved))
    })
}

fn copy_chats(db: &Connection, chats: &[Vec<Value>]) -> Result<(), StoreError> {
    for chat in chats {
        let deleted = match &chat[6] {
            Value::Integer(at) => Some(*at),
            _ => None,
        };
        let sql = "INSERT INTO chat (id, title, titled, pinned, created, updated, deleted, model, system_prompt, sampling, draft, tools)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        let values = rusqlite::params![
            integer(&chat[0]),
            text(&chat[1]).unwrap_or("Saved chat"),
            integer(&chat[2]) != 0,
            integer(&chat[3]) != 0,
            integer(&chat[4]),
            integer(&chat[5]),
            deleted,
            text(&chat[7]),
            text(&chat[8]).unwrap_or_default(),
            text(&chat[9]),
            text(&chat[10]).unwrap_or_default(),
            integer(&chat[12]) != 0,
        ];
        db.execute(sql, values).during(OPERATION)?;
    }
    Ok(())
}

/// Copies messages and returns their number.
fn copy_messages(db: &Connection, messages: &[Vec<Value>]) -> Result<usize, StoreError> {
    let mut saved = 0;
    // Parents are inserted before their children.
    for row in messages {
        let (Some(content), Some(speaker)) = (text(&row[4]), text(&row[3]).and_then(Speaker::from_name)) else {
            continue;
        };
        let (id, chat, created) = (integer(&row[0]), integer(&row[1]), integer(&row[5]));
        let sql = "INSERT OR IGNORE INTO chat (id, title, created, updated) VALUES (?1, 'Saved chat', ?2, ?2)";
        db.execute(sql, [chat, created]).during(OPERATION)?;
        let state = match text(&row[6]).and_then(MessageState::from_name) {
            Some(MessageState::Streaming) | None => MessageState::Interrupted,
            Some(state) => state,
        };
        // A message without its parent starts a branch of its own.
        let sql = "INSERT OR IGNORE INTO message (id, chat, parent, role, content, created, touched, state, edited, model, stats, tools)
            VALUES (?1, ?2, (SELECT id FROM message WHERE id = ?3 AND chat = ?2), ?4, ?5, ?6, ?6, ?7, ?8, ?9, ?10, ?11)";
        let values = rusqlite::params![
            id,
            chat,
            row[2],
            speaker.name(),
            content,
            created,
            state.name(),
            integer(&row[7]) != 0,
            text(&row[8]),
            text(&row[9]),
            text(&row[10]),
        ];
        db.execute(sql, values).during(OPERATION)?;
        message::index(db, id, content)?;
        saved += 1;
    }
    Ok(saved)
}

/// Makes each chat show its last visible branch, or its latest branch.
fn show_leaves(db: &Connection, chats: &[Vec<Value>]) -> Result<(), StoreError> {
    for chat in chats {
        let sql = "UPDATE chat SET leaf = (SELECT id FROM message WHERE id = ?2 AND chat = ?1) WHERE id = ?1";
        db.execute(sql, rusqlite::params![integer(&chat[0]), chat[11]]).during(OPERATION)?;
    }
    let sql = "UPDATE chat SET leaf = (SELECT max(id) FROM message WHERE chat = chat.id) WHERE leaf IS NULL";
    db.execute(sql, []).during(OPERATION)?;
    Ok(())
}

/// Copies attached files, their passages, and the record of passages that the model was given.
fn copy_files(
    db: &Connection,
    files: &[Vec<Value>],
    passages: &[Vec<Value>],
    given: &[Vec<Value>],
) -> Result<(), StoreError> {
    for file in files {
        let sql = "INSERT OR IGNORE INTO attachment (id, chat, message, name, kind, whole)
            SELECT ?1, chat.id, (SELECT id FROM message WHERE id = ?3), ?4, ?5, ?6 FROM chat WHERE id = ?2";
        let values = rusqlite::params![file[0], file[1], file[2], text(&file[3]), text(&file[4]), file[5]];
        if text(&file[3]).is_some() && text(&file[4]).is_some() {
            db.execute(sql, values).during(OPERATION)?;
        }
    }
    for row in passages {
        if let (Some(place), Some(words)) = (text(&row[2]), text(&row[3])) {
            passage::restore(db, integer(&row[0]), integer(&row[1]), place, words)?;
        }
    }
    for row in given {
        let sql = "INSERT OR IGNORE INTO given (message, passage)
            SELECT message.id, passage.id FROM message, passage WHERE message.id = ?1 AND passage.id = ?2";
        db.execute(sql, [integer(&row[1]), integer(&row[2])]).during(OPERATION)?;
    }
    Ok(())
}

/// Copies the pictures of attached files.
fn copy_pictures(damaged: &Connection, db: &Connection, pictures: &[Vec<Value>]) -> Result<(), StoreError> {
    for row in pictures {
        let sql = "SELECT file FROM picture WHERE id = ?1";
        // A damaged page loses only the picture on it.
        if let Ok(file) = damaged.query_row(sql, [integer(&row[0])], |row| row.get::<_, Vec<u8>>(0)) {
            picture::insert(db, AttachmentId(integer(&row[1])), &file)?;
        }
    }
    Ok(())
}

fn copy_presets(db: &Connection, presets: &[Vec<Value>]) -> Result<(), StoreError> {
    for preset in presets {
        if let (Some(name), Some(prompt)) = (text(&preset[1]), text(&preset[3])) {
            let sql = "INSERT OR IGNORE INTO preset (name, model, system_prompt, sampling) VALUES (?1, ?2, ?3, ?4)";
            db.execute(sql, rusqlite::params![name, text(&preset[2]), prompt, text(&preset[4])]).during(OPERATION)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ChatId, MessageId, NewMessage};

    /// A file of 30 chats with 20 messages each.
    fn filled(path: &Path) {
        let (mut store, _) = Store::open(path).unwrap();
        for c in 0..30 {
            let chat = store.add_chat(None, "").unwrap();
            store.rename_chat(chat, &format!("chat {c}")).unwrap();
            let mut parent = None;
            for m in 0..20 {
                let words = format!("message {m} of {c} {}", "word ".repeat(30));
                parent = Some(store.add_message(chat, parent, &NewMessage::user(&words)).unwrap());
            }
        }
        store.db.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
    }

    fn add_and_search(store: &mut Store) {
        let chat = store.add_chat(None, "").unwrap();
        store.add_message(chat, None, &NewMessage::user("still working")).unwrap();
        assert_eq!(store.search("still working").unwrap().len(), 1);
    }

    #[test]
    fn open_recovers_from_any_damage_and_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let good = folder.path().join("good.db");
        filled(&good);
        let bytes = std::fs::read(&good).unwrap();
        let pages = bytes.len() / 4096;
        assert!(pages > 40, "{pages} pages");
        let (mut set_aside, mut most) = (0, 0);
        for (n, page) in (0..pages).step_by(5).enumerate() {
            let path = folder.path().join(format!("broken-{n}.db"));
            let mut broken = bytes.clone();
            broken[page * 4096..(page + 1) * 4096].fill(0xA5);
            std::fs::write(&path, &broken).unwrap();
            let (mut store, report) = Store::open(&path).unwrap();
            if let Some(RecoveryReport { damaged, chats, messages }) = report {
                set_aside += 1;
                most = most.max(messages);
                assert_eq!(std::fs::read(&damaged).unwrap(), broken);
                assert_eq!(store.chats().unwrap().len(), chats);
                for chat in store.chats().unwrap() {
                    assert!(chat.leaf.is_none() || !store.branch(chat.id).unwrap().is_empty());
                }
            }
            add_and_search(&mut store);
        }
        assert!(set_aside > pages / 10, "only {set_aside} of {} were noticed", pages.div_ceil(5));
        assert!(most > 500, "at best {most} of 600 messages were saved");
    }

    #[test]
    fn files_of_messages_are_copied_with_what_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let (mut store, _) = Store::open(&path).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let bytes = crate::attachment::fixtures::haystack("The walrus sings.");
        let kind = crate::attachment::DocumentKind::Text;
        let document = crate::attachment::Document::read("a.txt".to_owned(), kind, bytes.as_bytes()).unwrap();
        let file = store.attach(chat, &document).unwrap();
        let page = |shade| thermocline_engine::pictures::Picture::from_rgb(1, 1, vec![shade; 3]).unwrap();
        let mut scan = crate::attachment::Document::of_picture("b.pdf".to_owned(), page(1));
        scan.pictures.push(page(2));
        store.attach(chat, &scan).unwrap();
        let message = store.add_message(chat, None, &NewMessage::user("x")).unwrap();
        store.send_attachments(chat, message).unwrap();
        let found = store.find_passages(&[file], "walrus", 1).unwrap();
        store.set_given(message, &[(file, false)], &[found[0].id]).unwrap();
        let mut copied = Store::in_memory().unwrap();
        copy(&store.db, &mut copied).unwrap();
        assert_eq!(copied.documents(chat).unwrap()[&message], [document, scan]);
        assert_eq!(copied.sources(chat).unwrap(), store.sources(chat).unwrap());
        assert_eq!(copied.find_passages(&[file], "walrus", 1).unwrap(), found);
    }

    #[test]
    fn open_moves_a_foreign_file_aside_and_fills_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        std::fs::write(&path, "my shopping list, which is not a database at all: milk, bread, butter".repeat(40))
            .unwrap();
        let (mut store, report) = Store::open(&path).unwrap();
        let report = report.unwrap();
        assert_eq!((report.chats, report.messages), (0, 0));
        assert!(std::fs::read_to_string(&report.damaged).unwrap().starts_with("my shopping list"));
        add_and_search(&mut store);

        // A file with a version number, but without the tables of that version.
        let hollow = folder.path().join("hollow.db");
        Connection::open(&hollow).unwrap().pragma_update(None, "user_version", 5).unwrap();
        let (mut store, report) = Store::open(&hollow).unwrap();
        assert!(report.is_some());
        add_and_search(&mut store);

        let empty = folder.path().join("empty.db");
        std::fs::write(&empty, "").unwrap();
        assert!(Store::open(&empty).unwrap().1.is_none());
    }

    #[test]
    fn truncated_file_yields_its_readable_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        filled(&path);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2 / 4096 * 4096]).unwrap();
        let (store, report) = Store::open(&path).unwrap();
        let report = report.unwrap();
        assert!(report.messages > 50, "{report:?}");
        let first = store.branch(ChatId(1)).unwrap();
        assert_eq!(first[0].id, MessageId(1));
    }
}
