//! Text of any direction, shown and edited. [`bidi`] divides it into lines and orders each as it is seen, [`emoji`] finds what
//! has a font of its own, and a [`visual_job`] is both as the painter lays it out, whose [`galley`] then has one glyph for each
//! character: paragraphs of Markdown are drawn so. A [`field`] of several lines or of one is text that is edited: [`edited`] puts
//! that layout back into the order in which it is written, with each [`row`]'s places for the cursor; [`control`] is what pointer
//! and arrows do to it, [`described`] what screen readers are told.

mod bidi;
mod control;
mod described;
mod edited;
mod emoji;
mod field;
mod galley;
mod row;
#[cfg(test)]
mod tests;
mod visual_job;

pub use bidi::{Piece, lines as bidi_lines};
pub use field::TextField;
pub use galley::{rects, repaired, start};
pub use visual_job::VisualJob;
