//! One text with its styles, links and formulas, laid out once per width.

use std::{collections::HashSet, ops::Range, sync::Arc};

use egui::{Align, Galley, Rect, Response, Sense, Stroke, TextFormat, Ui, Vec2};

use super::{
    copying,
    formula::Formula,
    layout::{BESIDE, LayoutKey, ReadyLayout},
};
use crate::{
    fonts,
    text::{aligned, begins_right, emboldened, rects, repaired, start, widest_word},
    theme::Palette,
};

/// Placeholder for a formula in the text.
pub const PLACE: char = '\u{fffc}';

/// Longest paragraph that is laid out as one, in bytes.
const LONG: usize = 4096;

/// Style of a part of the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// In a bold face.
    pub strong: bool,
    /// Slanted.
    pub italic: bool,
    /// Struck through.
    pub struck: bool,
    /// Underlined, as links are.
    pub underlined: bool,
    /// In the font of code.
    pub code: bool,
    /// Superscript.
    pub raised: bool,
    /// Subscript.
    pub lowered: bool,
    /// Index of the link that it is part of.
    pub link: Option<usize>,
    /// Index of the formula that it stands for.
    pub(super) formula: Option<usize>,
}

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Text of the link.
    pub words: String,
    /// Target of the link.
    pub target: String,
}

/// A text with styles.
#[derive(Debug, Default)]
pub struct Paragraph {
    pub(super) text: String,
    pub(super) spans: Vec<(Range<usize>, Style)>,
    pub(super) links: Vec<Link>,
    pub(super) formulas: Vec<Formula>,
    ready: Option<ReadyLayout>,
    /// Natural widths, and the layout key that they were measured for.
    natural: Option<(LayoutKey, NaturalWidth)>,
    align: Align,
}

/// Widths of a text, in points.
#[derive(Debug, Clone, Copy, Default)]
pub struct NaturalWidth {
    /// Width of the longest line.
    pub line: f32,
    /// Width of the longest word.
    pub word: f32,
}

impl PartialEq for Paragraph {
    /// True if both look the same. Layouts are not compared.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
            && self.spans == other.spans
            && self.links == other.links
            && self.formulas == other.formulas
    }
}

impl Paragraph {
    /// Takes over the layout of an earlier state. Returns true if both look the same.
    pub fn adopt(&mut self, before: Paragraph) -> bool {
        let same = *self == before;
        if same {
            *self = before.with_align(self.align);
        }
        same
    }

    /// The paragraph with its lines aligned to this side.
    pub fn with_align(self, align: Align) -> Self {
        Paragraph { align, ..self }
    }

    /// True if its first letter is right-to-left, so that its lines begin on the right.
    pub fn begins_right(&self) -> bool {
        begins_right(&self.text)
    }

    /// True if nothing is visible.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// The text as plain text; formulas as their source.
    pub fn plain(&self) -> String {
        let mut formulas = self.formulas.iter();
        let letter = |c: char| match c {
            PLACE => formulas.next().map(|formula| formula.source.clone()).unwrap_or_default(),
            c => c.to_string(),
        };
        self.text.chars().map(letter).collect()
    }

    /// Appends text.
    pub fn push(&mut self, words: &str, style: Style) {
        let start = self.text.len();
        // Remove the placeholder of formulas from the text.
        self.text.extend(words.chars().filter(|c| *c != PLACE));
        if let Some(link) = style.link.and_then(|link| self.links.get_mut(link)) {
            link.words.push_str(words);
        }
        match self.spans.last_mut() {
            Some((range, last)) if *last == style => range.end = self.text.len(),
            _ => self.spans.push((start..self.text.len(), style)),
        }
    }

    /// Appends a formula. A formula that cannot be laid out is shown as its source.
    pub fn push_formula(&mut self, formula: Formula, style: Style) {
        if formula.size().is_none() {
            return self.push(&formula.written(), Style { code: true, ..style });
        }
        let start = self.text.len();
        self.text.push(PLACE);
        self.spans.push((start..self.text.len(), Style { formula: Some(self.formulas.len()), ..style }));
        self.formulas.push(formula);
    }

    /// Adds the target of a link and returns its index.
    pub fn add_link(&mut self, target: &str) -> usize {
        self.links.push(Link { words: String::new(), target: target.to_owned() });
        self.links.len() - 1
    }

    /// Removes spaces and line ends at the end.
    pub fn trim_end(&mut self) {
        let end = self.text.trim_end().len();
        self.text.truncate(end);
        self.spans.retain(|(range, _)| range.start < end);
        if let Some((range, _)) = self.spans.last_mut() {
            range.end = range.end.min(end);
        }
    }

    /// Splits a long text into parts that are quick to lay out, at line ends or spaces.
    pub fn parts(self) -> Vec<Paragraph> {
        let (mut parts, mut rest) = (Vec::new(), self);
        while rest.text.len() > LONG {
            let most = rest.text.floor_char_boundary(LONG);
            let Some(at) = rest.text[..most].rfind('\n').or_else(|| rest.text[..most].rfind(' ')) else { break };
            let after = rest.split_off(at);
            parts.push(std::mem::replace(&mut rest, after));
        }
        parts.push(rest);
        parts
    }

    /// Splits off the text after the space or line end at `at`, which belongs to neither part.
    fn split_off(&mut self, at: usize) -> Paragraph {
        let mut after =
            Paragraph { text: self.text.split_off(at + 1), links: self.links.clone(), ..Paragraph::default() };
        self.text.truncate(at);
        let formulas = self.text.chars().filter(|c| *c == PLACE).count();
        after.formulas = self.formulas.split_off(formulas.min(self.formulas.len()));
        for (range, style) in &self.spans {
            let range = range.start.max(at + 1)..range.end;
            if range.start < range.end {
                let formula = style.formula.map(|number| number - formulas);
                after.spans.push((range.start - at - 1..range.end - at - 1, Style { formula, ..*style }));
            }
        }
        self.spans.retain(|(range, _)| range.start < at);
        if let Some((range, _)) = self.spans.last_mut() {
            range.end = range.end.min(at);
        }
        after
    }

    fn ready(&mut self, ui: &Ui, key: LayoutKey) -> ReadyLayout {
        match self.ready.take() {
            Some(ready) if ready.key == key => ready,
            _ => ReadyLayout::new(self, ui, key),
        }
    }

    /// Shows the paragraph with a font size of `size` points. `heading`: all of it in bold.
    pub fn show(&mut self, ui: &mut Ui, size: f32, heading: bool) -> Response {
        let key = LayoutKey::new(ui, size, heading, ui.available_width());
        let ready = self.ready(ui, key);
        let response = self.draw(ui, &ready);
        self.ready = Some(ready);
        response
    }

    /// Width and height in lines of at most `width` points.
    pub fn measure(&mut self, ui: &Ui, size: f32, heading: bool, width: f32) -> Vec2 {
        let ready = self.ready(ui, LayoutKey::new(ui, size, heading, width));
        let measured = ready.size;
        self.ready = Some(ready);
        measured
    }

    /// Widths of the longest line and of the longest word.
    pub fn natural_width(&mut self, ui: &Ui, size: f32, heading: bool) -> NaturalWidth {
        let key = LayoutKey::new(ui, size, heading, f32::INFINITY);
        match self.natural {
            Some((measured, width)) if measured == key => width,
            _ => {
                let ready = ReadyLayout::new(self, ui, key);
                let word = ui.fonts_mut(|fonts| widest_word(&fonts.layout_job(ready.text.job.clone())));
                let width = NaturalWidth { line: ready.size.x.ceil(), word: word.ceil() };
                self.natural = Some((key, width));
                width
            }
        }
    }

    /// Lays out the letters as they are drawn.
    fn galley(&self, ui: &Ui, ready: &ReadyLayout) -> Arc<Galley> {
        let mut galley = ui.fonts_mut(|fonts| fonts.layout_job(ready.text.job.clone()));
        if ready.ordered {
            galley = Arc::new(repaired(&galley));
        }
        if ready.thin {
            let letters = ready.text.job.text.chars().filter(|letter| !letter.is_ascii());
            let thin: HashSet<char> = ui.fonts_mut(|all| letters.filter(|it| fonts::is_thin(all, *it)).collect());
            let is_thin =
                |format: &TextFormat, letter| format.font_id.family == fonts::strong() && thin.contains(&letter);
            galley = Arc::new(emboldened(&galley, is_thin));
        }
        let align = if ready.to_the_left { Align::RIGHT } else { self.align };
        if align == Align::LEFT { galley } else { Arc::new(aligned(&galley, align)) }
    }

    fn draw(&self, ui: &mut Ui, ready: &ReadyLayout) -> Response {
        let room = ui.available_width();
        let width = if ready.to_the_left && room.is_finite() { room.max(ready.size.x) } else { ready.size.x };
        // A moving finger scrolls.
        let touched = ui.input(egui::InputState::any_touches);
        let sense = if touched { Sense::click() } else { Sense::click_and_drag() } - Sense::FOCUSABLE;
        let (rect, response) = ui.allocate_exact_size(Vec2::new(width, ready.size.y), sense);
        response.widget_info(|| egui::WidgetInfo::labeled(egui::Role::Label, true, self.plain()));
        if !ui.is_rect_visible(rect) {
            return response;
        }
        let at = if ready.to_the_left { rect.right_top() - Vec2::new(ready.size.x, 0.0) } else { rect.left_top() };
        let color = Palette::of(ui).text;
        let galley = self.galley(ui, ready);
        copying::label(ui, &response, at, &galley, self, ready);
        for formula in &ready.formulas {
            let (Some(drawn), Some((left, baseline))) =
                (self.formulas.get(formula.number), start(&galley, formula.range.start))
            else {
                continue;
            };
            let place = at + Vec2::new(left + BESIDE, baseline);
            drawn.paint(ui.painter(), place, formula.em, color);
            let Some((width, above, below)) = drawn.size() else { continue };
            let (top, bottom) = (Vec2::new(0.0, above * formula.em), Vec2::new(width, below) * formula.em);
            copy_source(
                ui,
                Rect::from_min_max(place - top, place + bottom),
                drawn,
                response.id.with(("formula", formula.number)),
            );
        }
        let mut reached = Vec::new();
        for (nth, (range, number)) in ready.links.iter().enumerate() {
            let Some(target) = self.links.get(*number) else { continue };
            for (part, rect) in rects(&galley, range).into_iter().enumerate() {
                let first = !reached.contains(number);
                reached.push(*number);
                let id = response.id.with(("link", nth, part));
                link(ui, rect.translate(at.to_vec2()), target, id, first);
            }
        }
        response
    }
}

/// Adds a context menu to a formula that copies its source.
fn copy_source(ui: &Ui, rect: Rect, formula: &Formula, id: egui::Id) {
    let sense = Sense::click() - Sense::FOCUSABLE;
    let response = ui.interact(rect, id, sense).on_hover_text(formula.source.as_str());
    response.context_menu(|ui| {
        if ui.button("Copy as LaTeX").clicked() {
            ui.copy_text(formula.written());
            ui.close();
        }
    });
}

/// Adds a link over its text. The keyboard reaches only the first part of the link.
fn link(ui: &Ui, rect: Rect, link: &Link, id: egui::Id, first: bool) {
    let sense = if first { Sense::click() } else { Sense::click() - Sense::FOCUSABLE };
    let response = ui.interact(rect, id, sense).on_hover_cursor(egui::CursorIcon::PointingHand);
    if first {
        response.widget_info(|| egui::WidgetInfo::labeled(egui::Role::Link, true, link.words.as_str()));
    }
    if response.has_focus() {
        let color = ui.visuals().hyperlink_color;
        ui.painter().rect_stroke(rect.expand(1.0), 2.0, Stroke::new(1.0, color), egui::StrokeKind::Outside);
    }
    let known = ["http://", "https://", "mailto:"].iter().any(|scheme| link.target.starts_with(scheme));
    if response.clicked() && known {
        ui.open_url(egui::OpenUrl::new_tab(&link.target));
    }
    response.on_hover_text(link.target.as_str());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_divided_with_their_styles() {
        let (plain, bold) = (Style::default(), Style { strong: true, ..Style::default() });
        let mut paragraph = Paragraph::default();
        paragraph.push(&"word ".repeat(700), plain);
        paragraph.push_formula(Formula::new("a", false), plain);
        paragraph.push(&" bold".repeat(700), bold);
        paragraph.push(" ", plain);
        paragraph.push_formula(Formula::new("b", false), plain);
        let whole = paragraph.plain();
        let parts = paragraph.parts();
        assert_eq!(parts.iter().map(Paragraph::plain).collect::<Vec<_>>().join(" "), whole);
        assert!(parts.len() == 2 && parts.iter().all(|part| part.text.len() <= LONG));
        assert_eq!((parts[0].formulas.len(), parts[1].formulas.len()), (1, 1));
        for part in &parts {
            let of_formula = |style: &Style| style.formula.is_none_or(|number| number < part.formulas.len());
            assert!(part.spans.iter().all(|(range, style)| range.end <= part.text.len() && of_formula(style)));
            assert_eq!(part.spans.iter().map(|(range, _)| range.len()).sum::<usize>(), part.text.len());
        }
        assert!(parts[1].spans.iter().any(|(_, style)| style.strong));
    }
}
