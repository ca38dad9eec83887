//! What can go wrong with a download.

use std::path::PathBuf;

use crate::units::bytes;

/// A download failed. What has arrived is kept where going on with it makes sense.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The network or the server.
    #[error("{url}: {source}")]
    Network {
        /// What was asked for.
        url: String,
        /// What happened.
        source: Box<ureq::Error>,
    },
    /// The connection ended before the file did.
    #[error("{url}: the connection ended after {got} of {wanted} bytes")]
    Short {
        /// What was asked for.
        url: String,
        /// Bytes there are.
        wanted: u64,
        /// Bytes that arrived.
        got: u64,
    },
    /// The server has an answer, but not the file.
    #[error("{url}: the server says {status}{hint}")]
    Status {
        /// What was asked for.
        url: String,
        /// HTTP status.
        status: u16,
        /// What that usually means.
        hint: &'static str,
    },
    /// Something else came than was asked for.
    #[error("{url}: expected {expected}, got {got}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What should have come.
        expected: &'static str,
        /// What came.
        got: String,
    },
    /// The file is not the one that was promised; it was removed.
    #[error("{url}: the checksum is wrong: expected sha256 {wanted}, got {got}; what arrived was removed, try again")]
    Checksum {
        /// What was asked for.
        url: String,
        /// Sum that was promised.
        wanted: String,
        /// Sum of what arrived.
        got: String,
    },
    /// The disk is too full.
    #[error("{}: {} are needed, {} are free", folder.display(), bytes(*wanted), bytes(*free))]
    Space {
        /// Where it was to go.
        folder: PathBuf,
        /// Bytes still to come.
        wanted: u64,
        /// Bytes there are.
        free: u64,
    },
    /// There is a file of that name.
    #[error("{} exists already; nothing was downloaded", .0.display())]
    Exists(PathBuf),
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
    /// Somebody asked to stop; what has arrived is kept.
    #[error("stopped")]
    Stopped,
}

impl DownloadError {
    /// Whether trying again, without anybody doing anything, may help.
    pub fn is_passing(&self) -> bool {
        match self {
            DownloadError::Network { source, .. } => !matches!(**source, ureq::Error::BadUri(_)),
            DownloadError::Short { .. } => true,
            DownloadError::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}
