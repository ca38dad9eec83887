//! The window. [`window`] lays out its columns and handles [`command`]s; what all panels share is the [`shell`] (chats on disk,
//! settings, the engine's [`EngineHandle`](thermocline_host::engine_handle::EngineHandle), downloads, notices). Each panel is a folder:
//! [`chats`] (the list on the left), [`conversation`] (messages and composer), [`neurons`] (the map and its figures), [`vram`]
//! (the budget), [`models`] (library, downloads, preparation), [`preferences`]. [`opening`] finds a graphics backend that draws
//! the window. [`theme`] has the colours and spacing, [`fonts`] the fonts, [`icon`] the program's picture, [`drawing`] makes its
//! own shaders ready, [`frame_pace`] says how soon a frame may follow another, [`widgets`] has what several panels draw,
//! [`text`] is text of any direction, shown and edited, [`markdown`] draws answers, [`toasts`] the notices, [`path_field`] stands for a file dialog where there is none; [`adapters`]
//! are the GPUs, [`keyboard`] says which part has the keys, [`areas`] are what F6 leads between, [`top_bar`] is the line above
//! the page with its [`model_menu`] and the [`race_menu`], and [`background`] is work that would make a frame wait.
//!
//! A frame reads and paints; it never waits for the engine, the disk or the network, and costs what is visible, not what
//! was said. Only where the processor itself draws, frames are throttled while the model answers. Panels change the world through
//! the shell and ask for anything beyond themselves with a command.

pub mod adapters;
pub mod areas;
pub mod background;
pub mod chats;
pub mod command;
pub mod conversation;
pub mod drawing;
pub mod file_dialog;
pub mod fonts;
pub mod frame_pace;
pub mod icon;
pub mod keyboard;
pub mod markdown;
pub mod model_menu;
pub mod models;
pub mod neurons;
pub mod opening;
pub mod path_field;
pub mod preferences;
mod race_menu;
pub mod shell;
pub mod spoken_text;
#[cfg(test)]
pub mod testing;
pub mod text;
pub mod theme;
pub mod toasts;
pub mod top_bar;
pub mod vram;
pub mod waker;
pub mod widgets;
pub mod window;

#[cfg(test)]
mod error_tests;

pub use window::{Window, run};
