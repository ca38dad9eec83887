//! The window of Thermocline. [`window`] lays out its columns and handles [`command`]s. All panels
//! share the [`shell`]: the chats on disk, the settings, the engine's
//! [`EngineHandle`](thermocline_host::engine_handle::EngineHandle), the downloads and the toasts.
//!
//! Each panel is a folder: [`chats`] (the list on the left), [`conversation`] (messages and
//! composer), [`neurons`] (the map and its figures), [`vram`] (the VRAM budget), [`models`]
//! (library, downloads, preparation) and [`preferences`].
//!
//! [`opening`] finds a graphics backend that can draw the window. [`icon`] is the program's icon,
//! [`drawing`] prepares the window's own shaders, and [`toasts`] are the notices. [`path_field`]
//! replaces the file dialog on desktops without one. [`passage_models`] chooses the embedding model
//! that finds passages of files. [`adapters`] lists the GPUs. [`keyboard`]
//! tells which part has the keyboard focus, and [`areas`] are the parts that F6 visits. [`top_bar`]
//! is the bar above the page with its [`model_menu`] and [`race_menu`]. Fonts, colours, small
//! widgets and rendered Markdown come from the crate `thermocline-rich-text`.
//!
//! A frame reads and paints. It never waits for the engine, the disk or the network. Its cost
//! depends on what is visible, not on the length of the chat. If the CPU draws the window, frames
//! are throttled while the model answers. Panels change shared state through the shell and send
//! commands for everything outside themselves.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// The proof of `Engine: Send` recurses through all types of wgpu.
#![recursion_limit = "256"]

mod adapters;
mod areas;
mod chats;
mod command;
mod conversation;
mod drawing;
mod file_dialog;
mod icon;
mod keyboard;
mod model_menu;
mod models;
mod neurons;
pub mod opening;
mod passage_models;
mod path_field;
mod preferences;
mod race_menu;
mod settings_file;
mod shell;
mod spoken_text;
#[cfg(test)]
mod testing;
mod toasts;
mod top_bar;
mod vram;
mod window;

#[cfg(test)]
mod error_tests;

pub use window::{Window, run};
