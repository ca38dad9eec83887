//! An edited text, laid out for a width. egui's field reads only one thing from a layout: the
//! position of the cursor before each character, in logical order. Here it gets these positions for
//! right-to-left lines. Its keys, input methods, undo and accessibility then work for such lines,
//! too.

use std::{ops::Range, sync::Arc};

use egui::{
    Galley, Pos2, Rangef, Rect, TextFormat, Ui, Vec2,
    epaint::{
        Mesh,
        text::{Glyph, cursor::CCursor},
    },
    text::{CharIndex, LayoutJob},
};

use super::{
    bidi::{self, BidiLine, LinePiece},
    galley,
    row::{Gap, Place, TextRow},
    visual_job::VisualJob,
};

/// An edited text with its layout.
#[derive(Debug)]
pub struct EditedText {
    /// The text in visual order.
    job: LayoutJob,
    /// egui's layout of `job`.
    seen: Arc<Galley>,
    /// Its letters in logical order, and the position of the cursor before each.
    pub galley: Arc<Galley>,
    /// Its lines; empty for purely left-to-right text.
    pub rows: Vec<TextRow>,
}

/// The space for the lines of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// Width of the field, in points.
    pub width: f32,
    /// True if wide lines are wrapped. Otherwise the text has no line ends.
    pub wraps: bool,
}

/// The character after the cursor, if the cursor is drawn next to it; `None`: next to the character
/// before.
pub type Leading = Option<usize>;

impl EditedText {
    /// Lays out a text in this space, with its letters in `format`.
    pub fn new(ui: &Ui, text: &str, room: Room, format: &TextFormat, leading: Leading) -> Self {
        let width = if room.wraps { room.width } else { f32::INFINITY };
        let layout = |visual: &VisualJob| ui.fonts_mut(|fonts| fonts.layout_job(visual.job.clone()));
        let part = |pieces: &[LinePiece]| {
            let mut visual = VisualJob::default();
            for piece in pieces {
                visual.push(&text[piece.range.clone()], piece.range.start, piece, format);
            }
            visual
        };
        let measure = |range: Range<usize>| layout(&part(&bidi::words(text, range))).size().x;
        let Some(lines) = bidi::lines(text, measure, width) else {
            let mut visual = part(&[LinePiece::to_the_right(0..text.len())]);
            visual.job.wrap.max_width = width;
            // A space at the end must be visible while the user types.
            visual.job.keep_trailing_whitespace = true;
            let galley = layout(&visual);
            return EditedText { job: visual.job, seen: Arc::clone(&galley), galley, rows: Vec::new() };
        };
        let mut visual = VisualJob::default();
        let mut first = Vec::with_capacity(lines.len());
        for line in &lines {
            if !first.is_empty() {
                visual.end_line(line.after, format.clone());
            }
            first.push(visual.origins.len());
            for piece in &line.pieces {
                visual.push(&text[piece.range.clone()], piece.range.start, piece, format);
            }
        }
        let seen = layout(&visual);
        let repaired = galley::repaired(&seen);
        let (galley, rows) = Ordering { text, lines: &lines, visual: &visual, first, room, leading }.written(repaired);
        EditedText { job: visual.job, seen, galley: Arc::new(galley), rows }
    }

    /// True if egui still has the same layout. It changes when a font is found or the font texture
    /// is rebuilt.
    pub fn is_current(&self, ui: &Ui) -> bool {
        Arc::ptr_eq(&self.seen, &ui.fonts_mut(|fonts| fonts.layout_job(self.job.clone())))
    }

    /// The cursor nearest to a position, and the character that it is next to.
    pub fn cursor_at(&self, pos: Vec2) -> (CCursor, Leading) {
        let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) else {
            return (self.galley.cursor_from_pos(pos), None);
        };
        // As in egui's field: above the text is its beginning, below it its end.
        const BEYOND: f32 = 5.0;
        if pos.y < first.height.min - BEYOND {
            return (self.galley.begin(), None);
        }
        if pos.y > last.height.max + BEYOND {
            return (self.galley.end(), None);
        }
        let row = self.rows.iter().find(|row| pos.y <= row.height.max).unwrap_or(last);
        cursor(row, row.gap_at(pos.x))
    }

    /// The cursor one line up or down, the character that it is next to, and the horizontal
    /// position kept for further lines.
    pub fn line_away(&self, from: CCursor, up: bool, x: Option<f32>) -> (CCursor, Leading, Option<f32>) {
        let at = self.galley.layout_from_cursor(from);
        let x = x.unwrap_or_else(|| self.galley.pos_from_layout_cursor(&at).center().x);
        let other = if up { at.row.checked_sub(1) } else { Some(at.row + 1) };
        let Some(other) = other.and_then(|other| self.rows.get(other)) else {
            return (if up { self.galley.begin() } else { self.galley.end() }, None, None);
        };
        let (cursor, leading) = cursor(other, other.gap_at(x));
        (cursor, leading, Some(x))
    }

    /// True if the line of a cursor begins on the right.
    pub fn begins_right(&self, cursor: CCursor) -> bool {
        self.rows.get(self.galley.layout_from_cursor(cursor).row).is_some_and(|row| row.to_the_left)
    }

    /// Rectangles of selected characters, relative to the beginning of the text.
    pub fn selected(&self, range: &Range<usize>) -> Vec<Rect> {
        let of_row = |row: &TextRow| {
            let rect = |ends: &Rangef| Rect::from_x_y_ranges(*ends, row.height);
            row.selected(range).iter().map(rect).collect::<Vec<_>>()
        };
        self.rows.iter().flat_map(of_row).collect()
    }
}

fn cursor(row: &TextRow, gap: Gap) -> (CCursor, Leading) {
    let index = row.first + gap.column;
    let cursor = CCursor { index: CharIndex(index), prefer_next_row: gap.column < row.places.len() };
    (cursor, gap.leading.then_some(index))
}

/// Converts lines from visual order to logical order.
struct Ordering<'a> {
    text: &'a str,
    lines: &'a [BidiLine],
    visual: &'a VisualJob,
    /// Index of each line's first character in visual order.
    first: Vec<usize>,
    room: Room,
    leading: Leading,
}

/// A character of a line: its position, its index in visual order, and the character.
struct WrittenCharacter {
    place: Place,
    seen: usize,
    chr: char,
}

impl Ordering<'_> {
    /// The layout in logical order, and its lines. `seen` has one glyph per character, in visual
    /// order.
    fn written(&self, mut seen: Galley) -> (Galley, Vec<TextRow>) {
        let wide = seen.rows.iter().map(|row| row.row.size.x).fold(0.0, f32::max);
        let right = match self.room {
            Room { width, .. } if !width.is_finite() => wide,
            Room { width, wraps: true } => width,
            Room { width, wraps: false } => width.max(wide),
        };
        let any = seen.rows.iter().find_map(|row| row.row.glyphs.first().copied());
        let (mut rows, mut characters) = (Vec::new(), 0);
        seen.mesh_bounds = Rect::NOTHING;
        for (nth, (line, row)) in self.lines.iter().zip(&mut seen.rows).enumerate() {
            let drawn = Arc::make_mut(&mut row.row);
            let shift = if line.to_the_left { right - drawn.size.x } else { 0.0 };
            let mut written = self.line(nth, line, &drawn.glyphs, shift);
            let next = self.lines.get(nth + 1).map_or(self.text.len(), |next| next.range.start);
            // Characters that end the line, apart from the line end known to egui, belong to it and
            // are invisible.
            let between = self.text.get(line.range.end..next).unwrap_or_default();
            let ends = between.ends_with('\n');
            let begins = if line.to_the_left { right } else { 0.0 };
            let stops = written.last().map_or(begins, |last| last.place.stops());
            for chr in between[..between.len() - usize::from(ends)].chars() {
                let place = Place { ends: Rangef::point(stops), to_the_left: line.to_the_left };
                written.push(WrittenCharacter { place, seen: usize::MAX, chr });
            }
            let height = Rangef::new(row.pos.y, row.pos.y + drawn.size.y);
            let places = written.iter().map(|it| it.place).collect();
            let of = TextRow { first: characters, places, height, to_the_left: line.to_the_left, ends, begins };
            characters += written.len() + usize::from(ends);
            drawn.visuals.mesh.vertices.iter_mut().for_each(|vertex| vertex.pos.x += shift);
            let glyphs = std::mem::take(&mut drawn.glyphs);
            let end = drawn.visuals.glyph_vertex_range.end;
            drawn.glyphs = ordered(&written, &glyphs, any, Vertices { mesh: &mut drawn.visuals.mesh, end });
            for (column, glyph) in drawn.glyphs.iter_mut().enumerate() {
                glyph.pos.x = of.caret(Gap { column, leading: self.leading == Some(of.first + column) });
            }
            drawn.size.x = of.caret(Gap { column: of.places.len(), leading: false });
            drawn.visuals.mesh_bounds = drawn.visuals.mesh.calc_bounds();
            (row.pos.x, row.ends_with_newline) = (0.0, ends);
            seen.mesh_bounds |= drawn.visuals.mesh_bounds.translate(Vec2::new(0.0, row.pos.y));
            rows.push(of);
        }
        let all_right = rows.iter().any(|row| row.to_the_left);
        let bottom = seen.rect.bottom();
        seen.rect = Rect::from_min_max(Pos2::ZERO, Pos2::new(if all_right { right } else { wide }, bottom));
        self.text.clone_into(&mut Arc::make_mut(&mut seen.job).text);
        (seen, rows)
    }

    /// The characters of a line in logical order.
    fn line(&self, nth: usize, line: &BidiLine, glyphs: &[Glyph], shift: f32) -> Vec<WrittenCharacter> {
        let divided = self.room.wraps && self.room.width.is_finite();
        let within = |x: f32| if divided { x.clamp(0.0, self.room.width.max(0.0)) } else { x };
        let mut found: Vec<(usize, WrittenCharacter)> = Vec::new();
        let mut seen = 0;
        for piece in &line.pieces {
            let count = self.text[piece.range.clone()].chars().count();
            let origins = &self.visual.origins[self.first[nth] + seen..][..count];
            for (origin, number) in origins.iter().zip(seen..) {
                let (Some(at), Some(glyph)) = (origin, glyphs.get(number)) else { continue };
                // Spaces at the end of a full line stay inside the line.
                let ends = Rangef::new(within(glyph.pos.x + shift), within(glyph.max_x() + shift));
                let chr = self.text[*at..].chars().next().unwrap_or_default();
                let place = Place { ends, to_the_left: piece.begins_right() };
                found.push((*at, WrittenCharacter { place, seen: number, chr }));
            }
            seen += count;
        }
        found.sort_by_key(|(at, _)| *at);
        let mut written: Vec<WrittenCharacter> = found.into_iter().map(|(_, written)| written).collect();
        for at in 1..written.len() {
            // A character joined to the one before it is at the end of that character.
            let before = written[at - 1].place;
            if written[at].place.ends.span() <= 0.0 {
                written[at].place = Place { ends: Rangef::point(before.stops()), ..before };
            }
        }
        written
    }
}

/// The mesh of a line, and the vertex after its last glyph.
struct Vertices<'a> {
    mesh: &'a mut Mesh,
    end: usize,
}

/// Reorders the glyphs of a line and their vertices to logical order, because egui recolours
/// selected glyphs. `any` is the glyph used for invisible characters.
fn ordered(written: &[WrittenCharacter], glyphs: &[Glyph], any: Option<Glyph>, drawn: Vertices<'_>) -> Vec<Glyph> {
    let first = |seen: usize| glyphs.get(seen).map_or(drawn.end, |glyph| glyph.first_vertex as usize);
    let (mut ordered, mut vertices) = (Vec::with_capacity(written.len()), Vec::with_capacity(drawn.end));
    let mut numbers = vec![None; drawn.mesh.vertices.len()];
    for it in written {
        let Some(mut glyph) = glyphs.get(it.seen).copied().or(any) else { continue };
        glyph.first_vertex = u32::try_from(vertices.len()).unwrap_or(u32::MAX);
        (glyph.chr, glyph.advance_width) = (it.chr, it.place.ends.span());
        if it.seen >= glyphs.len() {
            glyph.uv_rect = Default::default();
        }
        ordered.push(glyph);
        if it.seen < glyphs.len() {
            for vertex in first(it.seen)..first(it.seen + 1) {
                if let (Some(number), Some(found)) = (numbers.get_mut(vertex), drawn.mesh.vertices.get(vertex)) {
                    *number = u32::try_from(vertices.len()).ok();
                    vertices.push(*found);
                }
            }
        }
    }
    let indices: Option<Vec<u32>> =
        drawn.mesh.indices.iter().map(|at| numbers.get(*at as usize).copied().flatten()).collect();
    // Otherwise the line contains more than letters, and its mesh stays unchanged.
    if let Some(indices) = indices {
        (drawn.mesh.indices, drawn.mesh.vertices) = (indices, vertices);
    }
    ordered
}
