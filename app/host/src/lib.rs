//! The code that the window, the terminal and the server share. [`engine_handle`] opens models in
//! the background: models on disk, which [`library`] finds, the [`builtin`] model, and [`remote`]
//! models. [`answer_stats`] are the statistics of an answer. [`folders`] are the program's folders,
//! and [`log`] keeps the latest log lines. [`memory`] reads the machine's RAM, [`network`] explains
//! failed connections, and [`units`] formats and parses sizes.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// The compiler proves `Engine: Send` through all types of wgpu.
#![recursion_limit = "256"]

pub mod answer_stats;
pub mod builtin;
mod control_group;
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
