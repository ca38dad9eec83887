//! Chats of the window and of the terminal. [`chat`] generates the answers and [`store`] keeps the
//! chats on disk. [`attachment`] reads files attached to messages, [`tools`] holds functions that
//! models may call, and [`download`] fetches models. [`settings`] holds the user's settings,
//! including the measured [`speeds`] of each model. [`server_switch`] runs the window's server.
//! [`update`] looks for a newer version if the user turned this on.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// The compiler proves `Engine: Send` through all types of wgpu.
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
