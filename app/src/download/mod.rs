//! Models from the network. [`transfer`] fetches one file: it goes on where it was interrupted, checks the free space first
//! and the checksum at the end, and a file under its own name is always complete. [`hub`] lists the files of
//! any Hugging Face repository, and a few sparsely firing models, [`chat_models`] has those that suit a computer. [`queue`] downloads in the background.
//!
//! Nothing here is called unless the user asks for a download.

pub mod chat_models;
mod error;
pub mod hub;
mod queue;
mod space;
mod transfer;

#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

pub use error::DownloadError;
pub use queue::{DownloadId, DownloadRequest, DownloadState, DownloadStatus, Downloads};
pub use transfer::{DownloadProgress, DownloadSource, FetchedFile, fetch};

/// The HTTP client. It follows redirects and gives up on silent servers.
pub fn agent() -> ureq::Agent {
    let silence = Some(Duration::from_secs(30));
    ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(15)))
        .timeout_recv_response(silence)
        .timeout_per_read(silence)
        .http_status_as_error(false)
        .user_agent(concat!("thermocline/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}
