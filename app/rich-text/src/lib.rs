//! Rich text for egui. [`markdown`] lays out and draws Markdown with code, tables and formulas.
//! [`text`] shows, edits and copies text of any direction. [`theme`] holds the colours and spacing,
//! [`fonts`] the fonts, and [`widgets`] small widgets used by several panels. [`background`] runs
//! work that would delay a frame, [`waker`] requests frames from other threads, and [`frame_pace`]
//! limits the frame rate. This crate does not depend on models, chats or settings.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod background;
pub mod fonts;
pub mod frame_pace;
pub mod markdown;
pub mod text;
pub mod theme;
pub mod waker;
pub mod widgets;
