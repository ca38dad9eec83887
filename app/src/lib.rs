//! The Thermocline application: the program without the engine. [`cli`] is the command line and [`ui`] the window; [`server`] is
//! the HTTP API. [`engine_handle`] opens models in the background, and [`chat`] generates answers in chats; [`store`] holds the chats on
//! disk, [`library`] finds models on disk and [`download`] fetches more; [`builtin`] is the model inside the binary. [`folders`] are the
//! program's folders and [`settings`] are the user's settings; [`fence`] recognises code in Markdown, and [`units`] formats and parses
//! sizes.

// `Engine: Send` is proved through all types of wgpu.
#![recursion_limit = "256"]

pub mod builtin;
pub mod chat;
pub mod cli;
pub mod download;
pub mod engine_handle;
pub mod fence;
pub mod folders;
pub mod library;
pub mod server;
pub mod settings;
pub mod store;
pub mod ui;
pub mod units;
