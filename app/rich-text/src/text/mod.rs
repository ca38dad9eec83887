//! Text of any direction, shown and edited.
//!
//! - [`bidi`] wraps text into lines and orders each visually. [`emoji`] finds emoji, and
//!   [`shaping`] the characters that egui would reverse.
//! - [`visual_job`] combines these into egui's layout job. Its [`galley`] has one glyph per
//!   character. Markdown paragraphs are drawn from it, with [`bold`] letters that no bold face has.
//! - [`field`] is an edited text, identified by its [`edition`]. [`edited`] converts the layout to
//!   logical order, and each [`row`] holds the positions of the cursor.
//! - [`control`] handles the pointer and the arrow keys. [`described`] describes the text to screen
//!   readers.
//! - [`labels`] corrects the text of egui's own widgets.

mod bidi;
mod bold;
mod control;
mod described;
mod edited;
mod edition;
mod emoji;
mod field;
mod galley;
mod labels;
mod row;
mod scripts;
mod shaping;
#[cfg(test)]
mod tests;
mod visual_job;

pub use bidi::{LinePiece, begins_right, lines as bidi_lines, words as bidi_words};
pub use bold::emboldened;
pub use edition::Edition;
pub use field::TextField;
pub use galley::{aligned, rects, repaired, start, widest_word};
pub use labels::LabelOrder;
pub use scripts::{is_cjk, joins_words};
pub use shaping::to_the_right;
pub use visual_job::VisualJob;
