//! A thread that watches the file for changes, so that a slow disk or another window's lock does
//! not delay drawing.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
        mpsc::{self, SyncSender},
    },
    thread::{self, JoinHandle},
};

use rusqlite::{Connection, OpenFlags};

use super::error::{OperationContext, StoreError};

/// A thread that checks on request whether the file has changed.
#[derive(Debug)]
pub(super) struct NewsWatch {
    /// `None` while the watch is being dropped.
    ask: Option<SyncSender<()>>,
    changes: Arc<AtomicI64>,
    thread: Option<JoinHandle<()>>,
}

impl NewsWatch {
    /// Starts to watch the file. The thread calls `notify` after a change. Returns `None` if the
    /// thread or the connection cannot be started.
    pub fn start(path: &Path, notify: impl Fn() + Send + 'static) -> Option<Self> {
        let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        // One pending request is enough.
        let (ask, asked) = mpsc::sync_channel(1);
        let changes = Arc::<AtomicI64>::default();
        let latest = Arc::clone(&changes);
        let watch = move || {
            while asked.recv().is_ok() {
                // If the version cannot be read now, the next request reads it.
                let Ok(version) = data_version(&db) else { continue };
                if latest.swap(version, Relaxed) != version {
                    notify();
                }
            }
        };
        let thread = thread::Builder::new().name("news-of-chats".to_owned()).spawn(watch).ok()?;
        Some(NewsWatch { ask: Some(ask), changes, thread: Some(thread) })
    }

    /// A number that changes after the file has changed. Requests another check.
    pub fn changes(&self) -> i64 {
        if let Some(ask) = &self.ask {
            // A pending request serves this call, too.
            let _ = ask.try_send(());
        }
        self.changes.load(Relaxed)
    }
}

impl Drop for NewsWatch {
    /// Waits for the thread. The connection closed last cleans up the file, and this one is
    /// read-only and cannot.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// SQLite's number that differs after another connection has changed the file.
pub(super) fn data_version(db: &Connection) -> Result<i64, StoreError> {
    const OPERATION: &str = "checking for changed chats";
    let mut query = db.prepare_cached("PRAGMA data_version").during(OPERATION)?;
    query.query_row([], |row| row.get(0)).during(OPERATION)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use crate::store::Store;
    use thermocline_host::testing::{PATIENCE, eventually};

    #[test]
    fn watched_file_has_news_of_others_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        let (mut store, _) = Store::open(&path).unwrap();
        let (mut other, _) = Store::open(&path).unwrap();
        let (sender, changed) = mpsc::channel();
        store.watch(move || sender.send(()).unwrap_or_default());
        let (own, others) = store.version().unwrap();
        changed.recv_timeout(PATIENCE).unwrap();

        store.add_chat(None, "").unwrap();
        store.version().unwrap();
        changed.recv_timeout(PATIENCE).unwrap();
        let (after, same) = store.version().unwrap();
        assert!(after > own && same == others, "{others} became {same} by its own change");

        other.add_chat(None, "").unwrap();
        eventually("the news", || store.version().unwrap().1 != others);
        assert_eq!(store.version().unwrap().0, after);

        // The connection closed last cleans up the file.
        drop((other, store));
        let left = std::fs::read_dir(folder.path()).unwrap().flatten().map(|file| file.file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with("-wal")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
