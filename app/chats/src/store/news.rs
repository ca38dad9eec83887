//! Changes of the file, looked for on a thread of its own: a disk that is slow, or another window
//! that
//! holds the file, makes nobody wait who draws.

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

/// A thread that looks whether the file has changed whenever it is asked to.
#[derive(Debug)]
pub(super) struct NewsWatch {
    /// `None` while it is dropped.
    ask: Option<SyncSender<()>>,
    changes: Arc<AtomicI64>,
    thread: Option<JoinHandle<()>>,
}

impl NewsWatch {
    /// Begins to watch the file. `notify` is called, on that thread, after a change. `None` without a
    /// thread.
    pub fn start(path: &Path, notify: impl Fn() + Send + 'static) -> Option<Self> {
        let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        // One question is enough.
        let (ask, asked) = mpsc::sync_channel(1);
        let changes = Arc::<AtomicI64>::default();
        let latest = Arc::clone(&changes);
        let watch = move || {
            while asked.recv().is_ok() {
                // What cannot be read now is asked for again.
                let Ok(version) = data_version(&db) else { continue };
                if latest.swap(version, Relaxed) != version {
                    notify();
                }
            }
        };
        let thread = thread::Builder::new().name("news-of-chats".to_owned()).spawn(watch).ok()?;
        Some(NewsWatch { ask: Some(ask), changes, thread: Some(thread) })
    }

    /// A number that has changed since the file has, and another look at the file.
    pub fn changes(&self) -> i64 {
        if let Some(ask) = &self.ask {
            // One that waits already is this one, too.
            let _ = ask.try_send(());
        }
        self.changes.load(Relaxed)
    }
}

impl Drop for NewsWatch {
    /// Waits for the thread: the connection that is closed last tidies the file up, which this one
    /// cannot do.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// SQLite's number, which differs when another connection than this one has changed the file.
pub(super) fn data_version(db: &Connection) -> Result<i64, StoreError> {
    const OPERATION: &str = "looking for news of the chats";
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

        // Who closes it last tidies it up.
        drop((other, store));
        let left = std::fs::read_dir(folder.path()).unwrap().flatten().map(|file| file.file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with("-wal")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
