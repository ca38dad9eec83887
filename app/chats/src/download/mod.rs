//! Models from the network. Nothing here runs unless the user asks for a download.
//!
//! - [`transfer`] downloads one file and resumes interrupted downloads. It checks free space first
//!   and the checksum at the end. A file gets its final name only when it is complete.
//! - [`hub_search`] finds repositories by words. [`hub`] lists the files of any Hugging Face
//!   repository, and a few models that fire sparsely.
//! - [`chat_models`] has the models that suit a computer, and [`memory_fit`] computes whether a
//!   model fits.
//! - [`quantization`](mod@quantization) reads the quantisation from file names.
//! - [`queue`] downloads in the background, and [`json_request`] requests lists.

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

/// Creates the HTTP client. It follows redirects and times out if a server is silent.
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
