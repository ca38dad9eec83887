//! Errors of downloads.

use std::path::PathBuf;

use thermocline_host::{network, units::bytes};

/// A failed download. The received part is kept if it can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// A failure of the network or of the server.
    #[error("{}", network::why_unreachable(network::host(url), source))]
    Network {
        /// The requested address.
        url: String,
        /// The HTTP client's error.
        source: Box<ureq::Error>,
    },
    /// The connection ended before the end of the file.
    #[error("{url}: the connection ended after {got} of {wanted} bytes")]
    Short {
        /// The requested address.
        url: String,
        /// Length of the file in bytes.
        wanted: u64,
        /// Received bytes.
        got: u64,
    },
    /// The server answered with an error status.
    #[error("{url}: expected status 200, got {status}{hint}")]
    Status {
        /// The requested address.
        url: String,
        /// HTTP status.
        status: u16,
        /// Usual meaning of the status.
        hint: &'static str,
    },
    /// The server sent something unexpected.
    #[error("{url}: expected {expected}, got {got}")]
    Answer {
        /// The requested address.
        url: String,
        /// The expected content.
        expected: &'static str,
        /// The received content.
        got: String,
    },
    /// The file does not match the listed checksum, and was removed.
    #[error("{url}: the checksum is wrong (expected sha256 {wanted}, got {got}). The file was deleted. Try again")]
    Checksum {
        /// The requested address.
        url: String,
        /// Listed checksum.
        wanted: String,
        /// Checksum of the received file.
        got: String,
    },
    /// The disk has too little free space.
    #[error(
        "{}: the download needs {}, but only {} are free on this disk. Free some space, then resume",
        folder.display(),
        bytes(*wanted),
        bytes(*free)
    )]
    Space {
        /// Target folder.
        folder: PathBuf,
        /// Bytes still missing.
        wanted: u64,
        /// Available bytes.
        free: u64,
    },
    /// A file of that name exists already.
    #[error("{} already exists. Nothing was downloaded", .0.display())]
    Exists(PathBuf),
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
    /// The caller stopped the download. The received part is kept.
    #[error("stopped")]
    Stopped,
}

impl DownloadError {
    /// `true` if the same request may succeed later.
    pub fn is_passing(&self) -> bool {
        match self {
            DownloadError::Network { source, .. } => !matches!(**source, ureq::Error::BadUri(_)),
            DownloadError::Short { .. } => true,
            DownloadError::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}
