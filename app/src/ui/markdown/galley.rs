//! Places of characters in a text that was laid out.

use std::{ops::Range, sync::Arc};

use egui::{Galley, Pos2, Rect, Vec2, epaint::text::Glyph};

use super::bidi::joins_left;

/// Left end and baseline of a character, from where the text begins.
pub fn start(galley: &Galley, character: usize) -> Option<(f32, f32)> {
    let mut first = 0;
    for row in &galley.rows {
        if let Some(glyph) = row.row.glyphs.get(character - first) {
            return Some((row.pos.x + glyph.pos.x, row.pos.y + glyph.pos.y));
        }
        first += row.row.glyphs.len() + usize::from(row.ends_with_newline);
        if first > character {
            return None;
        }
    }
    None
}

/// Rectangles of characters, one for each line, from where the text begins.
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

/// `galley` with one glyph for each character of words that run to the left: they come with more, which takes the cursor to other
/// characters than the pointer is at. `to_the_left`: its lines end at the right.
pub fn repaired(galley: &Galley, to_the_left: bool) -> Arc<Galley> {
    let mut lines = galley.job.text.split('\n');
    let mut repaired = galley.clone();
    for row in &mut repaired.rows {
        if to_the_left {
            row.pos.x = (galley.rect.right() - row.row.size.x).max(0.0).floor();
            repaired.mesh_bounds |= row.row.visuals.mesh_bounds.translate(row.pos.to_vec2());
        }
        let line: Vec<char> = lines.next().unwrap_or_default().chars().collect();
        if let Some(glyphs) = glyphs_of(&line, &row.row.glyphs) {
            Arc::make_mut(&mut row.row).glyphs = glyphs;
        }
    }
    Arc::new(repaired)
}

/// The glyphs of a line's characters; `None` if they are as many already.
fn glyphs_of(line: &[char], glyphs: &[Glyph]) -> Option<Vec<Glyph>> {
    if line.len() == glyphs.len() {
        return None;
    }
    let (mut kept, mut at, mut from) = (Vec::with_capacity(line.len()), 0, 0);
    while at < line.len() {
        let joined = |chars: &mut dyn Iterator<Item = char>| chars.take_while(|c| joins_left(*c)).count();
        let word = joined(&mut line[at..].iter().copied());
        if word == 0 {
            kept.extend(glyphs.get(from).copied());
            (at, from) = (at + 1, from + 1);
            continue;
        }
        let rest = glyphs.get(from..).unwrap_or_default();
        let count = joined(&mut rest.iter().map(|glyph| glyph.chr));
        let seen = |glyph: &&Glyph| glyph.advance_width > 0.0 || !glyph.uv_rect.is_nothing();
        let (shown, hidden): (Vec<&Glyph>, Vec<&Glyph>) = rest[..count].iter().partition(seen);
        kept.extend(shown.into_iter().chain(hidden).take(word).copied());
        (at, from) = (at + word, from + count);
    }
    Some(kept)
}
