//! Markdown as it is shown. [`reader`] reads a text into the blocks of a [`document`], once [`list_code`], [`math_text`] and
//! [`emphasis`] have made of it what the parser understands, with characters that [`stand_in`] for others, and finds
//! [addresses](web_address) in it. A [`paragraph`] is one text with its links and [`formula`]s, which [`layout`] makes ready for a width: that is kept until the width changes. [`text`](super::text) orders lines of
//! scripts that run to the left; [`copying`] puts on the clipboard what was written. [`view`] draws blocks, [`table`] those with
//! columns, [`code`] code with its [colours](code_colours).

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
