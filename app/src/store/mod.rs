//! The chats on disk: one SQLite file, which any number of windows may have open. A chat is a tree of [`Message`]s whose
//! siblings are versions of each other; it shows the branch that ends in its leaf. What a model writes is committed as it
//! arrives ([`Streaming`]), so that a crash costs no more than a second of it.
//!
//! [`Store::open`] brings older files to the present version ([`schema`]) and sets a damaged one aside after saving what
//! can be read ([`salvage`]). [`search`] looks through all chats; [`exchange`] writes and reads files for people and other
//! programs.

mod chat;
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
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rusqlite::{Connection, Transaction, TransactionBehavior};

pub use chat::{Chat, ChatId};
pub use error::StoreError;
pub use folder::{Folder, FolderId};
pub use message::{Message, MessageId, MessageState, NewMessage, Speaker};
pub use preset::{Preset, PresetId};
pub use salvage::Salvage;
pub use search::Hit;
pub use streaming::Streaming;

use error::Doing;

/// How long another window may keep the file to itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// The chats.
#[derive(Debug)]
pub struct Store {
    db: Connection,
    path: PathBuf,
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
        match Self::connect(path) {
            Err(StoreError::Database { source, .. }) if salvage::is_damage(&source) => {
                let (store, report) = salvage::salvage(path)?;
                Ok((store, Some(report)))
            }
            opened => opened.map(|store| (store, None)),
        }
    }

    /// Opens or makes the file; damage is an error.
    fn connect(path: &Path) -> Result<Self, StoreError> {
        let db = Connection::open(path).doing("opening the chats")?;
        let mut store = Store { db, path: path.to_owned() };
        store.prepare()?;
        Ok(store)
    }

    /// Chats that end with the program.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn in_memory() -> Result<Self, StoreError> {
        let db = Connection::open_in_memory().doing("making chats in memory")?;
        let mut store = Store { db, path: PathBuf::new() };
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

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// An error unless exactly one row was changed.
fn one(changed: usize, what: &'static str, id: i64) -> Result<(), StoreError> {
    if changed == 1 { Ok(()) } else { Err(StoreError::Missing { what, id }) }
}
