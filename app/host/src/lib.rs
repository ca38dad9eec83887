//! What the window, the terminal and the server share. [`engine_handle`] opens models in the background: those on disk, which [`library`]
//! finds, the model inside the binary ([`builtin`]) and models of other servers ([`remote`]). [`answer_stats`] are the statistics of an
//! answer. [`folders`] are the program's folders, [`log`] keeps the latest lines of the log, [`memory`] reads the machine's RAM,
//! [`network`] explains failed connections, and [`units`] formats and parses sizes.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// `Engine: Send` is proved through all types of wgpu.
#![recursion_limit = "256"]

pub mod answer_stats;
pub mod builtin;
pub mod engine_handle;
pub mod folders;
pub mod library;
pub mod log;
pub mod memory;
pub mod network;
pub mod remote;
#[cfg(any(test, feature = "test-hooks"))]
pub mod testing;
pub mod units;
