//! Positions of characters in a laid-out text (egui's galley).

use std::{ops::Range, sync::Arc};

use egui::{Align, Galley, Pos2, Rangef, Rect, Vec2, epaint::text::Glyph};

use super::{
    bidi::{joins_left, runs_left},
    scripts::is_cjk,
};

/// Left end and baseline of a character, relative to the beginning of the text.
pub fn start(galley: &Galley, character: usize) -> Option<(f32, f32)> {
    let mut first = 0;
    for row in &galley.rows {
        if let Some(glyph) = row.row.glyphs.get(character.checked_sub(first)?) {
            return Some((row.pos.x + glyph.pos.x, row.pos.y + glyph.pos.y));
        }
        first += row.row.glyphs.len() + usize::from(row.ends_with_newline);
    }
    None
}

/// Rectangles of characters, one per line, relative to the beginning of the text.
pub fn rects(galley: &Galley, range: &Range<usize>) -> Vec<Rect> {
    let (mut rects, mut first) = (Vec::new(), 0);
    for row in &galley.rows {
        let count = row.row.glyphs.len();
        let (from, to) = (range.start.max(first), range.end.min(first + count));
        if from < to {
            let glyphs = &row.row.glyphs[from - first..to - first];
            let left = glyphs.iter().map(|glyph| glyph.pos.x).fold(f32::INFINITY, f32::min);
            let right = glyphs.iter().map(Glyph::max_x).fold(f32::NEG_INFINITY, f32::max);
            let corner = Pos2::new(row.pos.x + left, row.pos.y);
            rects.push(Rect::from_min_size(corner, Vec2::new(right - left, row.row.size.y)));
        }
        first += count + usize::from(row.ends_with_newline);
    }
    rects
}

/// `galley` with one glyph per character of right-to-left words. egui gives them more glyphs, and
/// one of these has the width of joined letters. The cursor would therefore miss the character at
/// the pointer.
pub fn repaired(galley: &Galley) -> Galley {
    let mut lines = galley.job.text.split('\n');
    let (mut repaired, mut start) = (galley.clone(), 0);
    for row in &mut repaired.rows {
        let line = lines.next().unwrap_or_default();
        if line.chars().any(runs_left) {
            let end = u32::try_from(row.row.visuals.glyph_vertex_range.end).unwrap_or(u32::MAX);
            let section = |at: usize| galley.job.sections.partition_point(|it| it.byte_range.end.0 <= start + at);
            let letters: Vec<_> = line.char_indices().map(|(at, chr)| Letter { chr, section: section(at) }).collect();
            let glyphs = glyphs_of(&letters, &row.row.glyphs, end);
            Arc::make_mut(&mut row.row).glyphs = glyphs;
        }
        start += line.len() + 1;
    }
    repaired
}

/// `galley` with its lines aligned to the right of the widest line, or centred. The space at the
/// end of a wrapped line does not count.
pub fn aligned(galley: &Galley, align: Align) -> Galley {
    let mut aligned = galley.clone();
    if align == Align::Min {
        return aligned;
    }
    let last_row = galley.rows.len().saturating_sub(1);
    for (nth, row) in aligned.rows.iter_mut().enumerate() {
        let is_seen = |glyph: &&Glyph| !glyph.chr.is_whitespace() || glyph.chr == '\u{a0}';
        let last = row.row.glyphs.iter().rfind(is_seen).filter(|_| nth < last_row && !row.ends_with_newline);
        let right = last.map_or(row.row.size.x, Glyph::max_x);
        row.pos.x = ((galley.rect.right() - right).max(0.0) * align.to_factor()).floor();
        aligned.mesh_bounds |= row.row.visuals.mesh_bounds.translate(row.pos.to_vec2());
    }
    aligned
}

/// Width of the widest part of a text that is not wrapped: a word, or a letter of a script without
/// spaces.
pub fn widest_word(galley: &Galley) -> f32 {
    let divides = |c: char| (c.is_whitespace() && c != '\u{a0}') || c == '-' || is_cjk(c);
    let (mut widest, mut word) = (0.0_f32, Rangef::NOTHING);
    for row in &galley.rows {
        for glyph in &row.row.glyphs {
            word = Rangef::new(word.min.min(glyph.pos.x), word.max.max(glyph.max_x()));
            widest = widest.max(word.span());
            if divides(glyph.chr) {
                word = Rangef::NOTHING;
            }
        }
        word = Rangef::NOTHING;
    }
    widest
}

/// A character of a line, and the index of its layout section.
#[derive(Clone, Copy)]
struct Letter {
    chr: char,
    section: usize,
}

/// The glyphs of a line's characters, from left to right. `end` is the vertex after the last glyph.
fn glyphs_of(line: &[Letter], glyphs: &[Glyph], end: u32) -> Vec<Glyph> {
    let (mut kept, mut at, mut from) = (Vec::with_capacity(line.len()), 0, 0);
    while at < line.len() {
        if !runs_left(line[at].chr) {
            kept.extend(glyphs.get(from).copied());
            (at, from) = (at + 1, from + 1);
            continue;
        }
        let rest = glyphs.get(from..).unwrap_or_default();
        let count = rest.iter().take_while(|glyph| joins_left(glyph.chr)).count();
        let next = rest.get(count).map_or(end, |glyph| glyph.first_vertex);
        let length = line[at..].iter().take_while(|letter| joins_left(letter.chr)).count();
        // In a right-to-left word, the section on the right is read first.
        let sections = line[at..at + length].chunk_by(|one, other| one.section == other.section);
        let word: Vec<char> = sections.rev().flatten().map(|letter| letter.chr).collect();
        kept.extend(letters(&word, &rest[..count], next));
        (at, from) = (at + length, from + count);
    }
    kept
}

/// A shape in a right-to-left word: a letter with its marks, or joined letters.
struct WordSign {
    /// Index of its first letter.
    first: usize,
    /// Its left and right ends, in points.
    left: f32,
    right: f32,
    /// One of its glyphs.
    glyph: Glyph,
    /// Its first vertex.
    vertex: u32,
}

/// One glyph per letter of a right-to-left word, from left to right. `glyphs` has one or more for
/// each sign, then some without a picture. Letters of one sign share its width equally, and marks
/// have no width. `next` is the vertex after the word.
fn letters(word: &[char], glyphs: &[Glyph], next: u32) -> Vec<Glyph> {
    let signs = signs(word, glyphs);
    if signs.is_empty() {
        let hidden = word.iter().rev().zip(glyphs.iter().cycle());
        return hidden.map(|(chr, glyph)| letter(glyph, *chr, glyph.pos.x, 0.0)).collect();
    }
    let (mut kept, mut end) = (Vec::with_capacity(word.len()), word.len());
    for (nth, sign) in signs.iter().enumerate().rev() {
        // The sign to the right begins here.
        let following = nth.checked_sub(1).map_or(next, |right| signs[right].vertex);
        let is_letter = |at: usize| at == sign.first || runs_left(word[at]);
        let count = (sign.first..end).filter(|at| is_letter(*at)).count();
        let mut left = sign.left;
        for at in (sign.first..end).rev() {
            let advance_width = if is_letter(at) { (sign.right - sign.left) / count as f32 } else { 0.0 };
            let mut letter = letter(&sign.glyph, word[at], left, advance_width);
            letter.first_vertex = sign.vertex;
            // The leftmost letter has the picture.
            if at + 1 < end {
                (letter.first_vertex, letter.uv_rect) = (following, Default::default());
            }
            left += advance_width;
            kept.push(letter);
        }
        end = sign.first;
    }
    kept
}

/// `glyph` changed to a letter at this position.
fn letter(glyph: &Glyph, chr: char, left: f32, width: f32) -> Glyph {
    let mut letter = *glyph;
    (letter.chr, letter.pos.x, letter.advance_width) = (chr, left, width);
    letter
}

/// The signs of a word, from its first letter, which is on the right.
fn signs(word: &[char], glyphs: &[Glyph]) -> Vec<WordSign> {
    let mut signs: Vec<WordSign> = Vec::new();
    for glyph in glyphs.iter().rev() {
        let wide = glyph.advance_width > 0.0;
        if !wide && glyph.uv_rect.is_nothing() {
            continue;
        }
        let begins = match signs.last() {
            None => Some(0),
            Some(sign) if wide => (sign.first + 1..word.len()).find(|at| word[*at] == glyph.chr),
            Some(_) => None,
        };
        let (left, right, vertex) = (glyph.pos.x, glyph.max_x(), glyph.first_vertex);
        match (begins, signs.last_mut()) {
            (Some(first), _) => signs.push(WordSign { first, left, right, glyph: *glyph, vertex }),
            (None, Some(sign)) => {
                if wide {
                    (sign.left, sign.right) = (sign.left.min(left), sign.right.max(right));
                }
                sign.vertex = sign.vertex.min(vertex);
            }
            (None, None) => {}
        }
    }
    signs
}
