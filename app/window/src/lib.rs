//! The window of Thermocline. [`window`] lays out its columns and handles [`command`]s. All panels share the [`shell`]: chats on disk,
//! settings, the engine's [`EngineHandle`](thermocline_host::engine_handle::EngineHandle), downloads and notices. Each panel is a folder:
//! [`chats`] (the list on the left), [`conversation`] (messages and composer), [`neurons`] (the map and its figures), [`vram`]
//! (the budget), [`models`] (library, downloads, preparation) and [`preferences`]. [`opening`] finds a graphics backend that draws
//! the window. [`icon`] is the program's picture, [`drawing`] prepares the window's own shaders, [`toasts`] are the notices,
//! [`path_field`] replaces the file dialog on desktops that have none, [`adapters`] are the GPUs, [`keyboard`] says which part has the
//! keys, [`areas`] are the parts that F6 visits, and [`top_bar`] is the line above the page with its [`model_menu`] and the
//! [`race_menu`]. Fonts, colours, small widgets and drawn Markdown come from the crate `thermocline-rich-text`.
//!
//! A frame reads and paints. It never waits for the engine, the disk or the network, and its cost depends on what is visible, not on
//! the length of the chat. If the CPU draws the window, frames are throttled while the model answers. Panels change the world through
//! the shell and send a command for everything outside themselves.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// `Engine: Send` is proved through all types of wgpu.
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
