//! The chats on disk: one SQLite file that any number of windows may have open. A chat is a tree of
//! [`StoredMessage`]s. Siblings are versions of each other, and the chat shows the branch that ends
//! in its leaf. Generated text is committed as it arrives ([`StreamingMessage`]), so that a crash
//! loses at most a second of it.
//!
//! [`Store::open`] migrates older files to the current version ([`schema`]). It moves a damaged
//! file aside after saving its readable part ([`recovery`]), and detects other windows with the
//! same chats ([`other_instances`]).
//!
//! - [`search`] is full-text search, and [`import_export`] reads and writes files for people and
//!   other programs.
//! - [`attachment`] keeps attached files, [`passage`] finds the passages of their text that fit a
//!   question, [`passage_vector`] finds passages with the same meaning, and [`picture`] keeps
//!   pictures.
//! - [`neuron_word`] keeps the words at which neurons fired, if the user wants that.
//! - [`news`] watches for changes by other windows on a separate thread.

mod attachment;
mod chat;
mod error;
mod folder;
pub mod import_export;
mod message;
mod neuron_map;
mod neuron_word;
mod news;
mod other_instances;
mod passage;
mod passage_vector;
mod picture;
mod preset;
mod recovery;
mod schema;
mod search;
mod streaming;
mod tool;

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub use attachment::{Attachment, AttachmentId, Source};
pub use chat::{Chat, ChatId, title};
use error::OperationContext;
pub use error::StoreError;
pub use folder::{Folder, FolderId};
pub use message::{MessageId, MessageState, NewMessage, Speaker, StoredMessage};
pub use neuron_word::{KeptWord, MOST_ROWS, MOST_WORDS};
use news::{NewsWatch, data_version};
use other_instances::InstanceLock;
pub use passage::{FoundPassage, PassageId};
pub use passage_vector::PassageRanking;
use picture::KnownPictures;
pub use preset::{Preset, PresetId};
pub use recovery::RecoveryReport;
use rusqlite::{Connection, OpenFlags, Params, Row, Transaction, TransactionBehavior};
pub use search::SearchHit;
pub use streaming::StreamingMessage;
pub use tool::{MessageTools, ToolCall, ToolOutcome, ToolResult};

/// Longest wait for another window's lock on the file.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait of a frame for another connection's lock.
const BRIEFLY: Duration = Duration::from_millis(20);

/// Time before a lock that was seen is tried again, so that a frame does not wait for it
/// repeatedly.
const LOCKED: Duration = Duration::from_millis(60);

/// Pause between two attempts to open a locked file.
const AGAIN: Duration = Duration::from_millis(20);

/// A connection to the file of chats.
#[derive(Debug)]
pub struct Store {
    // Dropped before the connection.
    news: Option<NewsWatch>,
    known: Cell<Option<KnownVersion>>,
    /// Time at which the last attempt found the file locked; `None` if it was not locked.
    locked: Cell<Option<Instant>>,
    db: Connection,
    path: PathBuf,
    instances: Option<InstanceLock>,
    known_pictures: KnownPictures,
}

/// A version of the file, valid while `changes` stays the same.
#[derive(Debug, Clone, Copy)]
struct KnownVersion {
    /// The result of [`NewsWatch::changes`].
    changes: i64,
    /// A number that differs after changes by other connections.
    others: i64,
}

impl Store {
    /// Opens the file, or creates it and its folders. A damaged file is moved aside and its
    /// readable part copied; the second value then reports the recovery.
    ///
    /// # Errors
    /// [`StoreError::Newer`] if a newer version wrote the file, and the errors of the system.
    pub fn open(path: &Path) -> Result<(Self, Option<RecoveryReport>), StoreError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| StoreError::File {
                operation: "creating the folder",
                path: folder.to_owned(),
                source,
            })?;
        }
        let (mut store, report) = match Self::connect(path) {
            Err(StoreError::Database { source, .. }) if recovery::is_damage(&source) => {
                let (store, report) = recovery::recover(path)?;
                (store, Some(report))
            }
            opened => (opened?, None),
        };
        store.join();
        Ok((store, report))
    }

    /// The file, to be opened by other threads. `None` for chats in memory.
    pub fn file(&self) -> Option<StoreFile> {
        (!self.path.as_os_str().is_empty()).then(|| StoreFile(self.path.clone()))
    }

    /// Prepares `read` for another thread. Chats in memory are read at once.
    pub fn reading<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Box<dyn FnOnce() -> Result<T, StoreError> + Send> {
        match self.file() {
            Some(file) => Box::new(move || read(&file.open_to_read()?)),
            None => {
                let found = read(self);
                Box::new(move || found)
            }
        }
    }

    /// `true` if a change need not wait: no other connection holds the write lock for longer than a
    /// moment.
    pub fn is_writable(&self) -> bool {
        if self.locked.get().is_some_and(|seen| seen.elapsed() < LOCKED) {
            return false;
        }
        let tried = self.db.busy_timeout(BRIEFLY).and_then(|()| self.db.execute_batch("BEGIN IMMEDIATE; COMMIT"));
        // The same call succeeded when the file was opened.
        let _ = self.db.busy_timeout(PATIENCE);
        // The change itself reports other errors.
        let locked = tried.is_err_and(|error| is_busy(&error));
        self.locked.set(locked.then(Instant::now));
        !locked
    }

    fn of(db: Connection, path: &Path) -> Self {
        Store {
            news: None,
            known: Cell::new(None),
            locked: Cell::new(None),
            db,
            path: path.to_owned(),
            instances: None,
            known_pictures: KnownPictures::default(),
        }
    }

    /// Detects other instances. If there are none, marks all streaming messages as interrupted.
    fn join(&mut self) {
        let path = self.path.with_extension("windows");
        let mut instances = None;
        // The transaction admits only one window at a time.
        let joined = self.transaction("opening the chats", |db| {
            let alone = instances.insert(InstanceLock::join(&path)).as_ref().is_ok_and(|instances| instances.alone);
            if alone { message::interrupt(db) } else { Ok(()) }
        });
        if let Err(error) = joined {
            // A full disk must not prevent opening. Messages without updates count as interrupted
            // soon anyway.
            tracing::warn!(%error, "answers that were interrupted are not marked");
        }
        match instances {
            Some(Err(error)) => tracing::warn!(%error, "other instances cannot be detected"),
            joined => self.instances = joined.and_then(Result::ok),
        }
    }

    /// `true` if another window had the chats open when this window opened them.
    pub fn has_other_instances(&self) -> bool {
        self.instances.as_ref().is_some_and(|instances| !instances.alone)
    }

    /// Opens or creates the file. A damaged file gives an error.
    fn connect(path: &Path) -> Result<Self, StoreError> {
        let began = Instant::now();
        loop {
            let db = Connection::open(path).during("opening the chats").map_err(|error| error.of_file(path))?;
            let mut store = Store::of(db, path);
            match store.prepare() {
                // SQLite's timeout does not cover the change of the journal mode. If two windows
                // create the file at the same moment, SQLite refuses one of them at once.
                Err(StoreError::Database { source, .. }) if is_busy(&source) && began.elapsed() < PATIENCE => {
                    thread::sleep(AGAIN);
                }
                prepared => return prepared.map(|()| store).map_err(|error| error.of_file(path)),
            }
        }
    }

    /// Opens chats in memory, which are lost when the program ends.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn in_memory() -> Result<Self, StoreError> {
        let db = Connection::open_in_memory().during("creating chats in memory")?;
        let mut store = Store::of(db, Path::new(""));
        store.prepare()?;
        Ok(store)
    }

    /// Opens chats in memory and adds an empty chat.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn with_chat() -> (Self, ChatId) {
        let mut store = Self::in_memory().expect("memory for a database");
        let chat = store.add_chat(None, "").expect("an empty database takes a chat");
        (store, chat)
    }

    /// Copies the chats of a file into memory and leaves the file unchanged, for folders that are
    /// read-only. The second value is the number of chats that could be read.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn copy_in_memory(path: &Path) -> Result<(Self, usize), StoreError> {
        let mut store = Self::in_memory()?;
        let chats = recovery::copy_unchanged(path, &mut store)?;
        Ok((store, chats))
    }

    fn prepare(&mut self) -> Result<(), StoreError> {
        self.db.busy_timeout(PATIENCE).during("opening the chats")?;
        // Committed text survives a crash of the program. A power failure may lose the last
        // commits, but never the file.
        let mode = |pragma, value| self.db.pragma_update(None, pragma, value).during("opening the chats");
        mode("journal_mode", "WAL")?;
        mode("synchronous", "NORMAL")?;
        mode("foreign_keys", "ON")?;
        schema::migrate(&mut self.db, &self.path)?;
        let verdict: String =
            self.db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).during("checking the chats")?;
        if verdict != "ok" {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            let source = rusqlite::Error::SqliteFailure(code, Some(verdict));
            return Err(StoreError::Database { operation: "checking the chats", file: None, source });
        }
        Ok(())
    }

    /// Path of the file; empty for chats in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of rows changed through this connection, and a number that changes when another
    /// connection changes the file.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn version(&self) -> Result<(u64, i64), StoreError> {
        let changes = self.news.as_ref().map(NewsWatch::changes);
        let others = match self.known.get() {
            Some(known) if Some(known.changes) == changes => known.others,
            _ => {
                let others = data_version(&self.db)?;
                self.known.set(changes.map(|changes| KnownVersion { changes, others }));
                others
            }
        };
        Ok((self.db.total_changes(), others))
    }

    /// Starts a thread that watches the file, so that [`Store::version`] reads it only after a
    /// change. The thread calls `notify` after each change.
    pub fn watch(&mut self, notify: impl Fn() + Send + 'static) {
        if !self.path.as_os_str().is_empty() {
            self.news = NewsWatch::start(&self.path, notify);
        }
    }

    /// Start of today and of yesterday in local time, in milliseconds since 1970.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn days(&self) -> Result<(i64, i64), StoreError> {
        let sql = "SELECT unixepoch('now', 'localtime', 'start of day', 'utc') * 1000,
            unixepoch('now', 'localtime', 'start of day', '-1 day', 'utc') * 1000";
        let days = self.db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)));
        days.during("reading the date")
    }

    /// Local date and time of `time`, which is in milliseconds since 1970. Does not read the file.
    pub fn local_time(&self, time: i64) -> Result<String, StoreError> {
        const OPERATION: &str = "reading the date";
        let sql = "SELECT strftime('%Y-%m-%d %H:%M', ?1 / 1000, 'unixepoch', 'localtime')";
        let mut query = self.db.prepare_cached(sql).during(OPERATION)?;
        query.query_row([time], |row| row.get::<_, Option<String>>(0)).during(OPERATION).map(Option::unwrap_or_default)
    }

    /// Runs `work` in a transaction: all of its changes are made or none.
    fn transaction<T>(
        &mut self,
        operation: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Store { db, path, .. } = self;
        let run = || {
            // If two windows began with a read, only one of them could continue with a write.
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).during(operation)?;
            let result = work(&transaction)?;
            transaction.commit().during(operation)?;
            Ok(result)
        };
        run().map_err(|error: StoreError| error.of_file(path))
    }
}

/// The file of chats, to be opened by another thread.
#[derive(Debug)]
pub struct StoreFile(PathBuf);

impl StoreFile {
    /// Opens the file for reading.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn open_to_read(self) -> Result<Store, StoreError> {
        self.open(OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    /// Opens the file for writing.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn open_to_write(self) -> Result<Store, StoreError> {
        self.open(OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    fn open(self, mode: OpenFlags) -> Result<Store, StoreError> {
        const OPERATION: &str = "opening the chats";
        let db =
            Connection::open_with_flags(&self.0, mode).during(OPERATION).map_err(|error| error.of_file(&self.0))?;
        db.busy_timeout(PATIENCE).during(OPERATION)?;
        let set = |pragma, value| db.pragma_update(None, pragma, value).during(OPERATION);
        set("synchronous", "NORMAL")?;
        set("foreign_keys", "ON")?;
        Ok(Store::of(db, &self.0))
    }
}

/// `true` if another connection has locked the file.
fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// All rows found by a query.
fn rows<T>(
    db: &Connection,
    operation: &'static str,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let found = || -> rusqlite::Result<Vec<T>> { db.prepare_cached(sql)?.query_map(params, read)?.collect() };
    found().during(operation)
}

/// [`StoreError::Missing`] unless exactly one row was changed.
fn one(changed: usize, what: &'static str, id: i64) -> Result<(), StoreError> {
    if changed == 1 { Ok(()) } else { Err(StoreError::Missing { what, id }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_waits_for_another_window_that_creates_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        // The lock that another window holds while it changes the journal mode.
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
    fn lock_of_another_connection_is_seen_without_waiting_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let (store, _) = Store::open(&path).unwrap();
        let version = store.version().unwrap();
        assert!(store.is_writable() && Store::in_memory().unwrap().is_writable());
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let began = Instant::now();
        assert!(!store.is_writable());
        assert!(began.elapsed() < PATIENCE / 2, "it waited {:?}", began.elapsed());
        assert!(store.reading(Store::chats)().unwrap().is_empty(), "a lock does not stop readers");
        other.execute_batch("ROLLBACK").unwrap();
        thermocline_host::testing::eventually("the end of the lock", || store.is_writable());
        assert_eq!(store.version().unwrap(), version, "looking is no change");
    }

    #[test]
    fn file_opened_by_another_thread_can_be_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(&folder.path().join("chats.db")).unwrap();
        let mut other = store.file().unwrap().open_to_write().unwrap();
        let chat = other.add_chat(None, "").unwrap();
        other.add_message(chat, None, &NewMessage::user("frogs")).unwrap();
        assert_eq!(store.search("frogs").unwrap().len(), 1);
        assert!(store.file().unwrap().open_to_read().unwrap().delete_chat(chat).is_err());
    }

    #[test]
    fn chats_that_cannot_be_written_are_copied_into_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a #1 50% chats.db");
        let (mut store, _) = Store::open(&path).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        store.rename_chat(chat, "Frogs").unwrap();
        store.add_message(chat, None, &NewMessage::user("Why do frogs jump?")).unwrap();
        drop(store);
        // Simulates a read-only folder: SQLite cannot create its companion files.
        std::fs::create_dir(folder.path().join("a #1 50% chats.db-wal")).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(error.to_string().contains("a #1 50% chats.db"), "{error}");
        let before = std::fs::read(&path).unwrap();
        let (mut copy, chats) = Store::copy_in_memory(&path).unwrap();
        assert_eq!((chats, &*copy.chats().unwrap()[0].title), (1, "Frogs"));
        assert_eq!(copy.branch(chat).unwrap()[0].content, "Why do frogs jump?");
        assert!(!copy.search("jump").unwrap().is_empty());
        copy.delete_chat(chat).unwrap();
        assert!(copy.path().as_os_str().is_empty() && std::fs::read(&path).unwrap() == before);
        let (empty, chats) = Store::copy_in_memory(&folder.path().join("nowhere/chats.db")).unwrap();
        assert!(chats == 0 && empty.chats().unwrap().is_empty());
    }

    #[test]
    fn full_disk_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let (mut store, _) = Store::open(&path).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let pages: i64 = store.db.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        store.db.pragma_update(None, "max_page_count", pages).unwrap();
        let long = "words ".repeat(20_000);
        let refused = [
            store.add_message(chat, None, &NewMessage::user(&long)).unwrap_err(),
            store.set_draft(chat, &long).unwrap_err(),
        ];
        for error in refused.map(|error| error.to_string()) {
            assert!(error.contains("full") && error.contains(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn first_instance_marks_streaming_messages_as_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let open = || Store::open(&path).unwrap().0;
        let mut first = open();
        let chat = first.add_chat(None, "").unwrap();
        let mut answer = StreamingMessage::begin(&mut first, chat, None, None).unwrap();
        answer.append("Once upon a time");
        answer.finish(&mut first, MessageState::Streaming, None).unwrap();
        let second = open();
        assert!(!first.has_other_instances() && second.has_other_instances());
        assert_eq!(second.message(answer.id()).unwrap().state, MessageState::Streaming, "the first is still there");

        // As after a crash.
        drop((first, second));
        let next = open();
        assert!(!next.has_other_instances());
        let kept = next.message(answer.id()).unwrap();
        assert_eq!((kept.state, &*kept.content), (MessageState::Interrupted, "Once upon a time"));
        assert_eq!(next.search("upon a").unwrap().len(), 1);
    }
}
