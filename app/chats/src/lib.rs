//! The chats of the window and of the terminal. [`chat`] generates answers in chats and [`store`] keeps chats on disk. [`attachment`]
//! reads files that go with messages, [`tools`] are functions that models may call, and [`download`] fetches models. [`settings`] are
//! the user's settings, with the [`speeds`] that models were measured at. [`server_switch`] is the window's server, and [`update`]
//! looks for a newer version if the user asks for it.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// `Engine: Send` is proved through all types of wgpu.
#![recursion_limit = "256"]

pub mod attachment;
pub mod chat;
pub mod download;
pub mod server_switch;
pub mod settings;
pub mod speeds;
pub mod store;
pub mod tools;
pub mod update;
