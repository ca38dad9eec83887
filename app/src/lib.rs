//! The Thermocline application: the program without the engine. [`cli`] is the command line and [`ui`] the window; [`server`] is
//! the HTTP API, and [`remote`] its client. [`engine_handle`] opens models in the background, and [`chat`] generates answers in
//! chats; [`store`] holds the chats on disk, [`attachment`] reads files that go with messages, [`tools`] are those that models may
//! call, [`library`] finds models on disk and [`download`] fetches more; [`builtin`] is the model inside the binary. [`folders`] are
//! the program's folders and [`settings`] are the user's settings, with the [`speeds`] that models were measured at; [`machines`] are
//! PCs by their published figures, [`fence`] recognises code in Markdown, [`log`] keeps the latest lines of the log, and [`units`] formats and parses sizes; [`update`] looks for a newer version
//! where that is switched on.

// They panic where nobody reads: `cli::standard_error` and `cli::answer` print.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// `Engine: Send` is proved through all types of wgpu.
#![recursion_limit = "256"]

pub mod attachment;
pub mod builtin;
pub mod chat;
pub mod cli;
pub mod download;
pub mod engine_handle;
pub mod fence;
pub mod folders;
pub mod library;
pub mod log;
pub mod machines;
pub mod memory;
pub mod network;
pub mod remote;
pub mod server;
pub mod settings;
pub mod speeds;
pub mod store;
#[cfg(test)]
mod testing;
pub mod tools;
pub mod ui;
pub mod units;
pub mod update;
