//! Rich text for egui. [`markdown`] lays out and draws Markdown with code, tables and formulas; [`text`] shows and edits text of any
//! direction, and copies it. [`theme`] has the colours and spacing, [`fonts`] the fonts and [`widgets`] the small things that several
//! panels draw. [`background`] is work that would make a frame wait, [`waker`] asks for frames from other threads, and [`frame_pace`]
//! says how soon a frame may follow another. This crate knows no model, chat or setting.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod background;
pub mod fonts;
pub mod frame_pace;
pub mod markdown;
pub mod text;
pub mod theme;
pub mod waker;
pub mod widgets;
