//! Errors of the chats on disk.

use std::path::{Path, PathBuf};

/// A failed operation on the chats; none of its changes were made.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused.
    #[error("{operation}{}: {source}", place(file.as_deref()))]
    Database {
        /// The operation.
        operation: &'static str,
        /// The file, if its disk or its folder is the reason.
        file: Option<PathBuf>,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The file system refused.
    #[error("{operation} {}: {source}", path.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A later version of the program has changed the file.
    #[error("{}: version {found} of the chats is newer than this program knows ({known}); it was left alone", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: i64,
        /// Latest version this program supports.
        known: i64,
    },
    /// The chat, message, folder or preset does not exist (any more).
    #[error("{what} {id} does not exist")]
    Missing {
        /// Type of the object.
        what: &'static str,
        /// Row id.
        id: i64,
    },
    /// An imported file is invalid.
    #[error("{what}: expected {expected}, got {got}")]
    Import {
        /// The invalid part.
        what: String,
        /// The expected content.
        expected: &'static str,
        /// The content found.
        got: String,
    },
}

fn place(file: Option<&Path>) -> String {
    file.map(|file| format!(" in {}", file.display())).unwrap_or_default()
}

impl StoreError {
    /// Names the file in an error of its disk or its folder: the user has to know which one is full
    /// or cannot be written to.
    pub(super) fn of_file(self, path: &Path) -> Self {
        use rusqlite::ErrorCode::{CannotOpen, DiskFull, PermissionDenied, ReadOnly, SystemIoFailure};
        match self {
            StoreError::Database { operation, file: None, source }
                if !path.as_os_str().is_empty()
                    && matches!(
                        source.sqlite_error_code(),
                        Some(CannotOpen | DiskFull | PermissionDenied | ReadOnly | SystemIoFailure)
                    ) =>
            {
                StoreError::Database { operation, file: Some(path.to_owned()), source }
            }
            other => other,
        }
    }
}

/// Adds the operation to SQLite's errors.
pub(super) trait OperationContext<T> {
    fn during(self, operation: &'static str) -> Result<T, StoreError>;
}

impl<T> OperationContext<T> for rusqlite::Result<T> {
    fn during(self, operation: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Database { operation, file: None, source })
    }
}
