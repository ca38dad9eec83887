//! Models from the network. [`transfer`] fetches one file: it goes on where it was interrupted, checks the free space first
//! and the checksum at the end, and a file under its own name is always complete. [`hub_search`] finds repositories by words,
//! [`hub`] lists the files of any Hugging Face repository, and a few sparsely firing models, [`chat_models`] has those that suit
//! a computer; [`quantization`](mod@quantization) reads names of files and [`memory_fit`] says which have room. [`queue`]
//! downloads in the background, [`json_request`] asks for lists.
//!
//! Nothing here is called unless the user asks for a download.

pub mod chat_models;
mod error;
pub mod hub;
pub mod hub_search;
pub(crate) mod json_request;
mod memory_fit;
mod quantization;
mod queue;
mod space;
mod transfer;

#[cfg(any(test, feature = "test-hooks"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use error::DownloadError;
pub use memory_fit::{GpuMemory, MemoryFit};
pub use quantization::quantization;
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
