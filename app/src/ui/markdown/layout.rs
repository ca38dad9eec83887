//! Paragraphs made ready for a width: a frame then only draws them.

use std::{cell::Cell, ops::Range};

use egui::{
    Align, Color32, FontId, Stroke, TextFormat, Ui, Vec2, Visuals,
    epaint::text::ByteIndex,
    text::{LayoutJob, LayoutSection},
};

use super::{
    bidi::{self, Piece},
    emoji,
    paragraph::{Paragraph, Style},
};
use crate::ui::{
    fonts,
    theme::{Palette, strong},
};

/// Size of an em of formulas, in that of the text around.
const FORMULA: f32 = 1.15;

/// Space around a formula, in points.
pub const BESIDE: f32 = 1.0;

/// Does not break, and leaves room for a formula.
const ROOM: char = '\u{a0}';

thread_local! {
    static LAYOUTS: Cell<usize> = const { Cell::new(0) };
}

/// Paragraphs that were made ready on this thread so far.
pub fn layouts() -> usize {
    LAYOUTS.get()
}

/// Everything a layout depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    width: f32,
    scale: f32,
    size: f32,
    dark: bool,
    heading: bool,
    /// True if emoji have the system's font.
    emoji: bool,
}

impl Key {
    /// That of lines of `width` points at most, with letters of `size` points.
    pub fn new(ui: &Ui, size: f32, heading: bool, width: f32) -> Self {
        let (scale, dark) = (ui.pixels_per_point(), ui.visuals().dark_mode);
        Key { width: width.round().max(1.0), scale, size, dark, heading, emoji: fonts::has_system_emoji() }
    }
}

/// Room for a formula.
#[derive(Debug)]
pub struct FormulaRoom {
    /// Characters of the layout.
    pub range: Range<usize>,
    /// Number of the formula.
    pub number: usize,
    /// Size of an em, in points.
    pub em: f32,
}

/// A text that is ready for a width.
#[derive(Debug)]
pub struct Ready {
    pub(super) key: Key,
    pub(super) job: LayoutJob,
    /// Characters of the layout that are links, and the links' numbers.
    pub(super) links: Vec<(Range<usize>, usize)>,
    pub(super) formulas: Vec<FormulaRoom>,
    /// Byte of the text that each character of the layout comes from; empty if it is the text.
    pub(super) origins: Vec<Option<usize>>,
    /// Width and height.
    pub(super) size: Vec2,
    /// True if lines begin at the right.
    pub(super) to_the_left: bool,
    /// True if words are in the order in which they are seen.
    pub(super) ordered: bool,
}

impl Ready {
    /// Lays out a paragraph.
    pub fn new(paragraph: &Paragraph, ui: &Ui, key: Key) -> Self {
        LAYOUTS.set(LAYOUTS.get() + 1);
        let room = ui.fonts_mut(|fonts| fonts.glyph_width(&FontId::proportional(key.size), ROOM)).max(1.0);
        let of = Layout { paragraph, ui, room };
        let lines = bidi::lines(
            &paragraph.text,
            |range| {
                let job = of.ready(key, &[Piece { range, mirrored: false, to_the_left: false }]).job;
                ui.fonts_mut(|fonts| fonts.layout_job(job)).size().x
            },
            key.width,
        );
        let mut ready = match lines {
            None => {
                let whole = Piece { range: 0..paragraph.text.len(), mirrored: false, to_the_left: false };
                let mut ready = of.ready(key, &[whole]);
                ready.job.wrap.max_width = key.width;
                ready
            }
            // Lines that are divided already, and are in the order in which they are seen.
            Some(lines) => {
                let mut ready = of.ready(key, &[]);
                ready.ordered = true;
                ready.to_the_left = lines.first().is_some_and(|line| line.to_the_left);
                for (nth, line) in lines.iter().enumerate() {
                    if nth > 0 {
                        add(&mut ready.job, "\n", format_of(&of, Style::default(), key));
                        ready.origins.push(line.after);
                    }
                    line.pieces.iter().for_each(|piece| of.append_piece(&mut ready, piece));
                }
                ready
            }
        };
        if !ready.ordered && ready.formulas.is_empty() {
            ready.origins = Vec::new();
        }
        ready.size = ui.fonts_mut(|fonts| fonts.layout_job(ready.job.clone())).size();
        ready
    }
}

/// A paragraph that is being laid out.
struct Layout<'a> {
    paragraph: &'a Paragraph,
    ui: &'a Ui,
    /// Width of [`ROOM`].
    room: f32,
}

impl Layout<'_> {
    fn ready(&self, key: Key, pieces: &[Piece]) -> Ready {
        let mut ready = Ready {
            key,
            job: LayoutJob::default(),
            links: Vec::new(),
            formulas: Vec::new(),
            origins: Vec::new(),
            size: Vec2::ZERO,
            to_the_left: false,
            ordered: false,
        };
        ready.job.wrap.max_width = f32::INFINITY;
        pieces.iter().for_each(|piece| self.append_piece(&mut ready, piece));
        ready
    }

    fn append_piece(&self, ready: &mut Ready, piece: &Piece) {
        let first = ready.origins.len();
        for (span, style) in &self.paragraph.spans {
            let (start, end) = (span.start.max(piece.range.start), span.end.min(piece.range.end));
            if start < end {
                self.append(ready, start..end, *style, piece.mirrored);
            }
        }
        if piece.to_the_left {
            // The painter begins such a word at its right.
            ready.origins[first..].reverse();
        }
    }

    fn append(&self, ready: &mut Ready, range: Range<usize>, style: Style, mirrored: bool) {
        let (key, from) = (ready.key, ready.origins.len());
        let mut format = format_of(self, style, key);
        let words = &self.paragraph.text[range.clone()];
        let formula = style.formula.and_then(|number| Some((number, self.paragraph.formulas.get(number)?.size()?)));
        if let Some((number, (width, above, below))) = formula {
            let (em, most) = (key.size * FORMULA, key.width - 2.0 * BESIDE);
            // One that is too wide for a line is smaller.
            let em = if width * em > most { (most - 1.0).max(1.0) / width } else { em };
            let width = width * em + 2.0 * BESIDE;
            let count = (width / self.room).round().max(1.0);
            // Letters of the line are centred in it: above and below them there is as much room.
            let height = 2.0 * em * (above - 0.25).max(below + 0.25) + 2.0;
            if height > key.size * 1.3 {
                format.line_height = Some(height);
            }
            format.extra_letter_spacing = if count > 1.0 { (width - count * self.room) / (count - 1.0) } else { 0.0 };
            format.font_id = FontId::proportional(key.size);
            (format.background, format.underline) = (Color32::TRANSPARENT, Stroke::NONE);
            add(&mut ready.job, &ROOM.to_string().repeat(count as usize), format);
            ready.origins.extend((0..count as usize).map(|_| Some(range.start)));
            ready.formulas.push(FormulaRoom { range: from..ready.origins.len(), number, em });
        } else if mirrored {
            let seen: String = words.chars().map(bidi::mirrored).collect();
            add(&mut ready.job, &seen, format);
            ready.origins.extend(words.char_indices().map(|(at, _)| Some(range.start + at)));
        } else {
            for (part, picture) in emoji::parts(words) {
                let mut format = format.clone();
                if picture {
                    format.font_id.family = fonts::emoji();
                    format.italics = false;
                }
                add(&mut ready.job, part, format);
            }
            ready.origins.extend(words.char_indices().map(|(at, _)| Some(range.start + at)));
        }
        let to = ready.origins.len();
        if let Some(link) = style.link {
            match ready.links.last_mut() {
                Some((range, last)) if *last == link && range.end == from => range.end = to,
                _ => ready.links.push((from..to, link)),
            }
        }
    }
}

/// Adds words as a section of their own: within one, words that run to the left change places with those beside them.
fn add(job: &mut LayoutJob, words: &str, format: TextFormat) {
    let start = job.text.len();
    job.text.push_str(words);
    let byte_range = ByteIndex(start)..ByteIndex(job.text.len());
    job.sections.push(LayoutSection { leading_space: 0.0, byte_range, format });
}

fn format_of(layout: &Layout<'_>, style: Style, key: Key) -> TextFormat {
    format(&Palette::of(layout.ui), layout.ui.visuals(), style, key)
}

fn format(palette: &Palette, visuals: &Visuals, style: Style, key: Key) -> TextFormat {
    let color = if style.link.is_some() { visuals.hyperlink_color } else { palette.text };
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
