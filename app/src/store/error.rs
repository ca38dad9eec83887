//! What can go wrong with the chats on disk.

use std::path::PathBuf;

/// An operation on the chats failed; nothing of it was done.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite says why.
    #[error("{doing}: {source}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The file system says why.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A later version of the program has changed the file.
    #[error("{}: version {found} of the chats is newer than this program knows ({known}); it was left alone", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The latest this program knows.
        known: i64,
    },
    /// A chat, message, folder or preset that is not there (any more).
    #[error("{what} {id} does not exist")]
    Missing {
        /// Kind of thing.
        what: &'static str,
        /// Its number.
        id: i64,
    },
    /// An imported file is not what it should be.
    #[error("{what}: expected {expected}, got {got}")]
    Import {
        /// Which part of it.
        what: String,
        /// What should be there.
        expected: &'static str,
        /// What is.
        got: String,
    },
}

/// Names what is done when SQLite fails.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError>;
}

impl<T> Doing<T> for rusqlite::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Database { doing, source })
    }
}
