//! The chats on disk: one SQLite file, which any number of windows may have open. A chat is a tree of [`Message`]s whose
//! siblings are versions of each other; it shows the branch that ends in its leaf. What a model writes is committed as it
//! arrives ([`Streaming`]), so that a crash costs no more than a second of it.
//!
//! [`Store::open`] brings older files to the present version ([`schema`]), sets a damaged one aside after saving what
//! can be read ([`salvage`]), and finds out who else has the chats open ([`company`]). [`search`] looks through all chats;
//! [`exchange`] writes and reads files for people and other programs.

mod chat;
mod company;
mod error;
pub mod exchange;
mod folder;
mod message;
mod preset;
mod salvage;
mod schema;
mod search;
mod streaming;

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rusqlite::{Connection, Transaction, TransactionBehavior};

pub use chat::{Chat, ChatId, title};
pub use error::StoreError;
pub use folder::{Folder, FolderId};
pub use message::{Message, MessageId, MessageState, NewMessage, Speaker};
pub use preset::{Preset, PresetId};
pub use salvage::Salvage;
pub use search::Hit;
pub use streaming::Streaming;

use company::Company;
use error::Doing;

/// How long another window may keep the file to itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two tries to open a file that another window keeps to itself.
const AGAIN: Duration = Duration::from_millis(20);

/// The chats.
#[derive(Debug)]
pub struct Store {
    db: Connection,
    path: PathBuf,
    company: Option<Company>,
}

impl Store {
    /// Opens the file, or makes it with the folders above it. A damaged one is moved aside and what can be read of it saved:
    /// then the second value says how that went.
    ///
    /// # Errors
    /// [`StoreError::Newer`] for a file of a later version; what the system says.
    pub fn open(path: &Path) -> Result<(Self, Option<Salvage>), StoreError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| StoreError::File {
                doing: "making the folder",
                path: folder.to_owned(),
                source,
            })?;
        }
        let (mut store, report) = match Self::connect(path) {
            Err(StoreError::Database { source, .. }) if salvage::is_damage(&source) => {
                let (store, report) = salvage::salvage(path)?;
                (store, Some(report))
            }
            opened => (opened?, None),
        };
        store.join();
        Ok((store, report))
    }

    /// Finds out who else is there. What was being written when nobody is was interrupted.
    fn join(&mut self) {
        let path = self.path.with_extension("windows");
        let mut company = None;
        // One window at a time.
        let joined = self.transaction("opening the chats", |db| {
            let alone = company.insert(Company::join(&path)).as_ref().is_ok_and(|company| company.alone);
            if alone { message::interrupt(db) } else { Ok(()) }
        });
        if let Err(error) = joined {
            // A full disk is no reason to have no chats: who gives no sign of life counts as gone soon enough.
            tracing::warn!(%error, "answers that were interrupted are not marked");
        }
        match company {
            Some(Err(error)) => tracing::warn!(%error, "who else has the chats open cannot be known"),
            joined => self.company = joined.and_then(Result::ok),
        }
    }

    /// Whether another window had the chats open when this one opened them.
    pub fn has_company(&self) -> bool {
        self.company.as_ref().is_some_and(|company| !company.alone)
    }

    /// Opens or makes the file; damage is an error.
    fn connect(path: &Path) -> Result<Self, StoreError> {
        let began = Instant::now();
        loop {
            let db = Connection::open(path).doing("opening the chats")?;
            let mut store = Store { db, path: path.to_owned(), company: None };
            match store.prepare() {
                // SQLite's own patience does not cover the change of the journal: of two windows that make the file at the same
                // moment, one is refused at once.
                Err(StoreError::Database { source, .. }) if is_busy(&source) && began.elapsed() < PATIENCE => {
                    thread::sleep(AGAIN);
                }
                prepared => return prepared.map(|()| store),
            }
        }
    }

    /// Chats that end with the program.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn in_memory() -> Result<Self, StoreError> {
        let db = Connection::open_in_memory().doing("making chats in memory")?;
        let mut store = Store { db, path: PathBuf::new(), company: None };
        store.prepare()?;
        Ok(store)
    }

    fn prepare(&mut self) -> Result<(), StoreError> {
        self.db.busy_timeout(PATIENCE).doing("opening the chats")?;
        // What was committed survives the program's end at any moment; a power cut may cost the last commits, never the file.
        let mode = |pragma, value| self.db.pragma_update(None, pragma, value).doing("opening the chats");
        mode("journal_mode", "WAL")?;
        mode("synchronous", "NORMAL")?;
        mode("foreign_keys", "ON")?;
        schema::migrate(&mut self.db, &self.path)?;
        let verdict: String =
            self.db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).doing("checking the chats")?;
        if verdict != "ok" {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            let source = rusqlite::Error::SqliteFailure(code, Some(verdict));
            return Err(StoreError::Database { doing: "checking the chats", source });
        }
        Ok(())
    }

    /// The file; empty for chats in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows that were changed through this connection, and a number that changes with the file when somebody else changes it.
    ///
    /// # Errors
    /// What the system says.
    pub fn version(&self) -> Result<(u64, i64), StoreError> {
        let query = self.db.prepare_cached("PRAGMA data_version").doing("looking for news of the chats");
        let others = query?.query_row([], |row| row.get(0)).doing("looking for news of the chats")?;
        Ok((self.db.total_changes(), others))
    }

    /// When the user's today and yesterday began, in milliseconds since 1970.
    ///
    /// # Errors
    /// What the system says.
    pub fn days(&self) -> Result<(i64, i64), StoreError> {
        let sql = "SELECT unixepoch('now', 'localtime', 'start of day', 'utc') * 1000,
            unixepoch('now', 'localtime', 'start of day', '-1 day', 'utc') * 1000";
        let days = self.db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)));
        days.doing("looking at the calendar")
    }

    /// Everything `work` does, or nothing of it.
    fn transaction<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // Two windows that both begin by reading could not both go on to write.
        let transaction = self.db.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
        let result = work(&transaction)?;
        transaction.commit().doing(doing)?;
        Ok(result)
    }
}

/// Whether somebody else has the file to itself.
fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// An error unless exactly one row was changed.
fn one(changed: usize, what: &'static str, id: i64) -> Result<(), StoreError> {
    if changed == 1 { Ok(()) } else { Err(StoreError::Missing { what, id }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_window_is_just_making_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        // As the other one has it while it changes the journal.
        let other = Connection::open(&path).unwrap();
        other.execute_batch("CREATE TABLE t (x); BEGIN IMMEDIATE").unwrap();
        let opened = thread::scope(|scope| {
            let opening = scope.spawn(|| Store::open(&path).map(|(_, damage)| damage));
            thread::sleep(Duration::from_millis(300));
            other.execute_batch("ROLLBACK").unwrap();
            opening.join().unwrap()
        });
        assert_eq!(opened.unwrap(), None);
    }

    #[test]
    fn what_was_being_written_when_all_windows_are_gone_was_interrupted_and_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let open = || Store::open(&path).unwrap().0;
        let mut first = open();
        let chat = first.add_chat(None, "").unwrap();
        let mut answer = Streaming::begin(&mut first, chat, None, None).unwrap();
        answer.append("Once upon a time");
        answer.finish(&mut first, MessageState::Streaming, None).unwrap();
        let second = open();
        assert!(!first.has_company() && second.has_company());
        assert_eq!(second.message(answer.id()).unwrap().state, MessageState::Streaming, "the first is still there");

        // As if it had been killed.
        drop((first, second));
        let next = open();
        assert!(!next.has_company());
        let kept = next.message(answer.id()).unwrap();
        assert_eq!((kept.state, &*kept.content), (MessageState::Interrupted, "Once upon a time"));
        assert_eq!(next.search("upon a").unwrap().len(), 1);
    }
}
