//! A text as the painter lays it out: in the order in which it is seen.

use egui::{
    TextFormat,
    epaint::text::ByteIndex,
    text::{LayoutJob, LayoutSection},
};

use super::{
    bidi::{self, Piece},
    emoji,
    shaping::{parts_to_the_left, parts_to_the_right},
};
use crate::fonts;

/// The words of a text in the order in which they are seen, and where each of their characters comes from. Emoji have their font
/// in it.
#[derive(Debug, Default)]
pub struct VisualJob {
    /// The words, each run of them a section of its own.
    pub job: LayoutJob,
    /// Byte of the text that each character seen comes from; `None`: only the layout has it.
    pub origins: Vec<Option<usize>>,
}

impl VisualJob {
    /// Adds a part of a piece: `words` begin at the byte `from` of the text.
    pub fn push(&mut self, words: &str, from: usize, piece: &Piece, format: &TextFormat) {
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
            // Such a word begins at its right.
            self.origins[first..].reverse();
        }
    }

    /// Adds `count` times a letter that stands for the character at the byte `from`.
    pub fn push_room(&mut self, letter: char, count: usize, from: usize, format: TextFormat) {
        self.section(&letter.to_string().repeat(count), format);
        self.origins.extend((0..count).map(|_| Some(from)));
    }

    /// Ends a line; `origin`: the text's own line end, if it ends there.
    pub fn end_line(&mut self, origin: Option<usize>, format: TextFormat) {
        self.section("\n", format);
        self.origins.push(origin);
    }

    /// Adds words as a section of their own: within one, words that run to the left change places with those beside them.
    fn section(&mut self, words: &str, format: TextFormat) {
        let start = self.job.text.len();
        self.job.text.push_str(words);
        let byte_range = ByteIndex(start)..ByteIndex(self.job.text.len());
        self.job.sections.push(LayoutSection { leading_space: 0.0, byte_range, format });
    }
}
