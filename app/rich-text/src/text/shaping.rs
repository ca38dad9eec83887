//! egui's shaping of text. egui passes the letters of one font to the shaper, which uses the
//! direction of the first script that it finds. Numbers would get that direction, too, but always
//! read left to right. Each of their digits is therefore a section of its own.

use egui::{
    epaint::text::ByteIndex,
    text::{LayoutJob, LayoutSection},
};
use harfrust::{Direction, UnicodeBuffer};
use unicode_segmentation::UnicodeSegmentation;

use super::bidi::joins_left;

/// Signs that text fonts join to arrows. Users who write `->` mean the two signs.
const ARROWS: [char; 5] = ['-', '<', '=', '>', '|'];

/// True for characters of the Unicode blocks reserved for right-to-left scripts.
pub fn may_turn(c: char) -> bool {
    matches!(c,
        '\u{590}'..='\u{8ff}'
        | '\u{fb1d}'..='\u{fdff}'
        | '\u{fe70}'..='\u{fefe}'
        | '\u{10800}'..='\u{10fff}'
        | '\u{1e800}'..='\u{1efff}')
}

/// True if egui begins these words on the right.
pub fn begins_right(words: &str) -> bool {
    if !words.chars().any(may_turn) {
        return false;
    }
    let mut buffer = UnicodeBuffer::new();
    buffer.push_str(words);
    buffer.guess_segment_properties();
    buffer.direction() == Direction::RightToLeft
}

/// Splits left-to-right text into parts that egui shows as written. Characters that it would
/// reverse or join to arrows are separate parts.
pub fn parts_to_the_right(words: &str) -> Vec<&str> {
    if !words.contains(['<', '>']) && !words.chars().any(may_turn) {
        return vec![words];
    }
    let (mut parts, mut start, mut last) = (Vec::new(), 0, None);
    for (at, cluster) in words.grapheme_indices(true) {
        let first = cluster.chars().next();
        let reversed = begins_right(cluster);
        if at > start && (reversed || is_arrow(last, first)) {
            parts.push(&words[start..at]);
            start = at;
        }
        last = first;
        if reversed {
            parts.push(&words[at..at + cluster.len()]);
            start = at + cluster.len();
        }
    }
    if start < words.len() {
        parts.push(&words[start..]);
    }
    parts
}

/// True if a text font may join two signs to an arrow.
fn is_arrow(one: Option<char>, other: Option<char>) -> bool {
    let both = [one, other].map(|c| c.filter(|c| ARROWS.contains(c)));
    both.iter().all(Option::is_some) && both.iter().flatten().any(|c| "<>".contains(*c))
}

/// A layout job that egui shows as written, with such characters in separate sections. Its words
/// are not reordered.
pub fn to_the_right(job: LayoutJob) -> LayoutJob {
    if !job.text.chars().any(may_turn) {
        return job;
    }
    let mut apart = LayoutJob { sections: Vec::new(), ..job.clone() };
    for section in &job.sections {
        let mut at = section.byte_range.start.0;
        for part in numbers_apart(&job.text[at..section.byte_range.end.0]) {
            let byte_range = ByteIndex(at)..ByteIndex(at + part.len());
            at += part.len();
            apart.sections.push(LayoutSection { byte_range, ..section.clone() });
        }
    }
    apart
}

/// Splits text of both directions. Numbers that egui would reverse are separate parts, and words
/// stay whole.
fn numbers_apart(words: &str) -> Vec<&str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for (at, cluster) in words.grapheme_indices(true) {
        if begins_right(cluster) && !cluster.chars().next().is_some_and(joins_left) {
            parts.extend([&words[start..at], &words[at..at + cluster.len()]].into_iter().filter(|it| !it.is_empty()));
            start = at + cluster.len();
        }
    }
    parts.extend(Some(&words[start..]).filter(|it| !it.is_empty() || parts.is_empty()));
    parts
}

/// Parts of a right-to-left word, from left to right. The word is one part if egui begins it on the
/// right.
pub fn parts_to_the_left(word: &str) -> Vec<&str> {
    if begins_right(word) { vec![word] } else { word.graphemes(true).rev().collect() }
}

#[cfg(test)]
mod tests {
    use egui::{Color32, FontId};

    use super::*;

    #[test]
    fn what_the_painter_would_turn_is_apart() {
        assert_eq!(parts_to_the_right("in ٢٥ or 25"), ["in ", "٢", "٥", " or 25"]);
        assert_eq!(parts_to_the_right("۱۴۰۴"), ["۱", "۴", "۰", "۴"]);
        assert_eq!(parts_to_the_right("plain – 日本"), ["plain – 日本"]);
        assert_eq!(parts_to_the_right("٢").concat(), "٢");
        assert_eq!(parts_to_the_left("مرحبا"), ["مرحبا"]);
        assert_eq!(parts_to_the_left("؟؛"), ["؛", "؟"], "signs of no script");
        for parts in [parts_to_the_right("a٢b٣"), parts_to_the_right("-> ٢->")] {
            assert!(parts.iter().all(|part| !part.is_empty()), "{parts:?}");
        }
    }

    #[test]
    fn words_of_code_stay_whole() {
        let job = LayoutJob::simple("x = ٢٥ # مرحبا".to_owned(), FontId::monospace(12.0), Color32::WHITE, 99.0);
        let apart = to_the_right(job.clone());
        assert_eq!(apart.text, job.text);
        let range = |section: &LayoutSection| section.byte_range.start.0..section.byte_range.end.0;
        let parts: Vec<&str> = apart.sections.iter().map(|section| &apart.text[range(section)]).collect();
        assert_eq!(parts, ["x = ", "٢", "٥", " # مرحبا"]);
    }

    /// Digits of every script, with the bidirectional class of their numbers.
    #[test]
    fn digits_of_every_script_that_run_to_the_right_are_apart() {
        for zero in ['0', '٠', '۰', '०', '๐', '\u{10d30}', '０', '\u{1d7ce}'] {
            let digits: String = (0..10).filter_map(|digit| char::from_u32(u32::from(zero) + digit)).collect();
            let parts = parts_to_the_right(&digits);
            assert_eq!(parts.concat(), digits);
            assert!(parts.iter().all(|part| part.chars().count() == 1 || !begins_right(part)), "{parts:?}");
        }
    }

    #[test]
    fn arrows_stay_two_signs() {
        assert_eq!(parts_to_the_right("a -> b"), ["a -", "> b"]);
        assert_eq!(parts_to_the_right("x <=> y"), ["x <", "=", "> y"]);
        assert_eq!(parts_to_the_right("a - b > c"), ["a - b > c"]);
    }
}
