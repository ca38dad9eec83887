//! Layout of paragraphs for a width. A frame then only draws the result.

use std::{cell::Cell, ops::Range};

use egui::{Align, Color32, FontId, Stroke, TextFormat, Ui, Vec2};

use super::paragraph::{Paragraph, Style};
use crate::{
    fonts,
    text::{LinePiece, VisualJob, bidi_lines, bidi_words},
    theme::{Palette, strong},
};

/// Font size of formulas, relative to the surrounding text.
const FORMULA: f32 = 1.15;

/// Space around a formula, in points.
pub const BESIDE: f32 = 1.0;

/// A non-breaking space as a placeholder for a formula.
const ROOM: char = '\u{a0}';

thread_local! {
    static LAYOUTS: Cell<usize> = const { Cell::new(0) };
}

/// Number of paragraphs laid out on this thread so far.
pub fn layouts() -> usize {
    LAYOUTS.get()
}

/// Everything that a layout depends on, apart from the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayoutKey {
    width: f32,
    scale: f32,
    size: f32,
    dark: bool,
    heading: bool,
    /// True if emoji have the system's font.
    emoji: bool,
}

impl LayoutKey {
    /// A key for lines of at most `width` points with a font size of `size` points.
    pub fn new(ui: &Ui, size: f32, heading: bool, width: f32) -> Self {
        let (scale, dark) = (ui.pixels_per_point(), ui.visuals().dark_mode);
        LayoutKey { width: width.round().max(1.0), scale, size, dark, heading, emoji: fonts::has_system_emoji() }
    }
}

/// The space of a formula in a layout.
#[derive(Debug)]
pub struct FormulaRoom {
    /// Range of characters in the layout.
    pub range: Range<usize>,
    /// Index of the formula.
    pub number: usize,
    /// Font size of the formula, in points.
    pub em: f32,
}

/// A text laid out for a width.
#[derive(Debug)]
pub struct ReadyLayout {
    pub(super) key: LayoutKey,
    /// The text in visual order. `origins` is empty if the characters and their order equal the
    /// text.
    pub(super) text: VisualJob,
    /// Ranges of link characters in the layout, and the index of each link.
    pub(super) links: Vec<(Range<usize>, usize)>,
    pub(super) formulas: Vec<FormulaRoom>,
    /// Width and height, in points.
    pub(super) size: Vec2,
    /// True if lines begin on the right.
    pub(super) to_the_left: bool,
    /// True if words are in visual order.
    pub(super) ordered: bool,
    /// True if the text has bold letters that the bold face lacks.
    pub(super) thin: bool,
}

impl ReadyLayout {
    /// Lays out a paragraph.
    pub fn new(paragraph: &Paragraph, ui: &Ui, key: LayoutKey) -> Self {
        LAYOUTS.set(LAYOUTS.get() + 1);
        let room = ui.fonts_mut(|fonts| fonts.glyph_width(&FontId::proportional(key.size), ROOM)).max(1.0);
        let of = Layout { paragraph, ui, room };
        let lines = bidi_lines(
            &paragraph.text,
            |range| {
                let job = of.ready(key, &bidi_words(&paragraph.text, range)).text.job;
                ui.fonts_mut(|fonts| fonts.layout_job(job)).size().x
            },
            key.width,
        );
        let mut ready = match lines {
            None => {
                let mut ready = of.ready(key, &[LinePiece::to_the_right(0..paragraph.text.len())]);
                ready.text.job.wrap.max_width = key.width;
                ready
            }
            // These lines are already wrapped and in visual order.
            Some(lines) => {
                let mut ready = of.ready(key, &[]);
                ready.ordered = true;
                ready.to_the_left = lines.first().is_some_and(|line| line.to_the_left);
                for (nth, line) in lines.iter().enumerate() {
                    if nth > 0 {
                        ready.text.end_line(line.after, format(ui, Style::default(), key));
                    }
                    line.pieces.iter().for_each(|piece| of.append_piece(&mut ready, piece));
                }
                ready
            }
        };
        if !ready.ordered && ready.formulas.is_empty() {
            ready.text.origins = Vec::new();
        }
        ready.size = ui.fonts_mut(|fonts| fonts.layout_job(ready.text.job.clone())).size();
        ready
    }
}

/// A paragraph that is being laid out.
struct Layout<'a> {
    paragraph: &'a Paragraph,
    ui: &'a Ui,
    /// Width of [`ROOM`] in points.
    room: f32,
}

impl Layout<'_> {
    fn ready(&self, key: LayoutKey, pieces: &[LinePiece]) -> ReadyLayout {
        let mut ready = ReadyLayout {
            key,
            text: VisualJob::default(),
            links: Vec::new(),
            formulas: Vec::new(),
            size: Vec2::ZERO,
            to_the_left: false,
            ordered: false,
            thin: false,
        };
        pieces.iter().for_each(|piece| self.append_piece(&mut ready, piece));
        ready
    }

    fn append_piece(&self, ready: &mut ReadyLayout, piece: &LinePiece) {
        let append = |(span, style): &(Range<usize>, Style)| {
            let (start, end) = (span.start.max(piece.range.start), span.end.min(piece.range.end));
            if start < end {
                self.append(ready, start..end, *style, piece);
            }
        };
        // The first part of a right-to-left word is on its right.
        if piece.to_the_left {
            self.paragraph.spans.iter().rev().for_each(append);
        } else {
            self.paragraph.spans.iter().for_each(append);
        }
    }

    fn append(&self, ready: &mut ReadyLayout, range: Range<usize>, style: Style, piece: &LinePiece) {
        let (key, from) = (ready.key, ready.text.origins.len());
        let mut format = format(self.ui, style, key);
        let words = &self.paragraph.text[range.clone()];
        let formula = style.formula.and_then(|number| Some((number, self.paragraph.formulas.get(number)?.size()?)));
        if let Some((number, (width, above, below))) = formula {
            let (em, most) = (key.size * FORMULA, key.width - 2.0 * BESIDE);
            // A formula that is too wide for a line is shrunk.
            let em = if width * em > most { (most - 1.0).max(1.0) / width } else { em };
            let width = width * em + 2.0 * BESIDE;
            let count = (width / self.room).round().max(1.0);
            // Letters are centred in the line, so the space above and below them is equal.
            let height = 2.0 * em * (above - 0.25).max(below + 0.25) + 2.0;
            if height > key.size * 1.3 {
                format.line_height = Some(height);
            }
            format.extra_letter_spacing = if count > 1.0 { (width - count * self.room) / (count - 1.0) } else { 0.0 };
            format.font_id = FontId::proportional(key.size);
            (format.background, format.underline) = (Color32::TRANSPARENT, Stroke::NONE);
            ready.text.push_room(ROOM, count as usize, range.start, format);
            ready.formulas.push(FormulaRoom { range: from..ready.text.origins.len(), number, em });
        } else {
            let is_bold = format.font_id.family == fonts::strong() && !words.is_ascii();
            ready.thin |= is_bold && self.ui.fonts_mut(|all| words.chars().any(|letter| fonts::is_thin(all, letter)));
            ready.text.push(words, range.start, piece, &format);
        }
        let to = ready.text.origins.len();
        if let Some(link) = style.link {
            match ready.links.last_mut() {
                Some((range, last)) if *last == link && range.end == from => range.end = to,
                _ => ready.links.push((from..to, link)),
            }
        }
    }
}

fn format(ui: &Ui, style: Style, key: LayoutKey) -> TextFormat {
    let visuals = ui.visuals();
    let color = if style.link.is_some() { visuals.hyperlink_color } else { Palette::of(ui).text };
    let small = style.raised || style.lowered;
    let size = if small { key.size * 0.75 } else { key.size };
    let font_id = match style {
        Style { code: true, .. } => FontId::monospace(size * 0.9),
        Style { strong: true, .. } => strong(size),
        _ if key.heading => strong(size),
        _ => FontId::proportional(size),
    };
    let line = |on: bool| if on { Stroke::new(1.0, color) } else { Stroke::NONE };
    let valign = match style {
        Style { raised: true, .. } => Align::TOP,
        Style { lowered: true, .. } => Align::BOTTOM,
        _ => Align::Center,
    };
    TextFormat {
        font_id,
        color,
        italics: style.italic,
        strikethrough: line(style.struck),
        underline: line(style.link.is_some() || style.underlined),
        background: if style.code { visuals.code_bg_color } else { Color32::TRANSPARENT },
        valign,
        ..TextFormat::default()
    }
}
