//! Markdown rendering.
//!
//! - [`reader`] reads a text into the blocks of a [`document`] and finds [addresses](web_address)
//!   in it.
//! - [`list_code`], [`math_text`] and [`emphasis`] first rewrite the text for the parser, with
//!   [`stand_in`] characters.
//! - [`paragraph`] is one text with its links and [`formula`]s. [`layout`] lays it out, and keeps
//!   the result until the width changes.
//! - [`text`](super::text) orders right-to-left lines, and [`copying`] puts the written text on the
//!   clipboard.
//! - [`view`] draws blocks, [`table`] tables, and [`code`] code with its [colours](code_colours).

mod code;
mod code_colours;
mod copying;
mod document;
mod emphasis;
mod formula;
mod layout;
mod list_code;
mod math_text;
mod paragraph;
mod raw_html;
mod reader;
mod sideways;
mod stand_in;
mod table;
mod view;
mod web_address;

pub use code::{parts, show as show_code};
pub use code_colours::{CodeColours, coloured_bytes};
pub use document::MarkdownDocument;
pub use layout::layouts;
pub use reader::{Targets, definition};

#[cfg(test)]
mod tests;
