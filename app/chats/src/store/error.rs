//! Errors of the chat store.

use std::path::{Path, PathBuf};

/// A failed operation on the chats. None of its changes were made.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused an operation.
    #[error("{operation}{}: {source}", place(file.as_deref()))]
    Database {
        /// The operation.
        operation: &'static str,
        /// The file, if its disk or folder is the cause.
        file: Option<PathBuf>,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The file system refused an operation.
    #[error("{operation} {}: {source}", path.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A newer version of the program has changed the file.
    #[error("{} was written by a newer version of Thermocline (format {found}, this version reads up to {known}). The file \
        was not changed", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: i64,
        /// Latest version that this program supports.
        known: i64,
    },
    /// The chat, message, folder or preset does not exist.
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
    /// Names the file in an error caused by its disk or folder, so that the user learns which disk
    /// is full or which folder is read-only.
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
