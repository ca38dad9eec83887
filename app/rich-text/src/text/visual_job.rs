//! A text in visual order, as egui lays it out.

use egui::{
    TextFormat,
    epaint::text::ByteIndex,
    text::{LayoutJob, LayoutSection},
};

use super::{
    bidi::{self, LinePiece},
    emoji,
    shaping::{parts_to_the_left, parts_to_the_right},
};
use crate::fonts;

/// The text in visual order, and the origin of each character. Emoji have their own font.
#[derive(Debug, Default)]
pub struct VisualJob {
    /// egui's layout job. Each run of text is a section of its own.
    pub job: LayoutJob,
    /// Byte of the text that each shown character comes from; `None` if only the layout contains
    /// it.
    pub origins: Vec<Option<usize>>,
}

impl VisualJob {
    /// Appends a part of a piece. `words` begin at byte `from` of the text.
    pub fn push(&mut self, words: &str, from: usize, piece: &LinePiece, format: &TextFormat) {
        let first = self.origins.len();
        let seen = if piece.mirrored { words.chars().map(bidi::mirrored).collect() } else { words.to_owned() };
        for (part, picture) in emoji::parts(&seen) {
            let mut format = format.clone();
            if picture {
                format.font_id.family = fonts::emoji();
                format.italics = false;
            }
            let shown = if piece.to_the_left { parts_to_the_left(part) } else { parts_to_the_right(part) };
            shown.into_iter().for_each(|part| self.section(part, format.clone()));
        }
        self.origins.extend(words.char_indices().map(|(at, _)| Some(from + at)));
        if piece.to_the_left {
            // A right-to-left word begins on its right.
            self.origins[first..].reverse();
        }
    }

    /// Appends `letter` `count` times for the character at byte `from`.
    pub fn push_room(&mut self, letter: char, count: usize, from: usize, format: TextFormat) {
        self.section(&letter.to_string().repeat(count), format);
        self.origins.extend((0..count).map(|_| Some(from)));
    }

    /// Ends a line. `origin` is the byte of the text's own line end, if there is one.
    pub fn end_line(&mut self, origin: Option<usize>, format: TextFormat) {
        self.section("\n", format);
        self.origins.push(origin);
    }

    /// Appends a separate section. Inside one section, egui would swap right-to-left words with
    /// their neighbours.
    fn section(&mut self, words: &str, format: TextFormat) {
        let start = self.job.text.len();
        self.job.text.push_str(words);
        let byte_range = ByteIndex(start)..ByteIndex(self.job.text.len());
        self.job.sections.push(LayoutSection { leading_space: 0.0, byte_range, format });
    }
}
