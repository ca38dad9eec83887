//! Text of any direction, shown and edited. [`bidi`] divides it into lines and orders each as it is seen, [`emoji`] finds what
//! has a font of its own, [`shaping`] knows which characters the painter would turn, and a [`visual_job`] is all of it as the
//! painter lays it out, whose [`galley`] then has one glyph for each character: paragraphs of Markdown are drawn so,
//! with [`bold`] letters where no face has them. A [`field`] of several lines or of one is text that is
//! edited, and its [`edition`] says which text that is: [`edited`] puts
//! that layout back into the order in which it is written, with each [`row`]'s places for the cursor; [`control`] is what pointer
//! and arrows do to it, [`described`] what screen readers are told. Texts of other widgets are the painter's;
//! [`labels`] put them in order.

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

pub use bidi::{Piece, begins_right, lines as bidi_lines, words as bidi_words};
pub use bold::emboldened;
pub use edition::Edition;
pub use field::TextField;
pub use galley::{aligned, rects, repaired, start, widest_word};
pub use labels::LabelOrder;
pub use scripts::{is_cjk, joins_words};
pub use shaping::to_the_right;
pub use visual_job::VisualJob;
