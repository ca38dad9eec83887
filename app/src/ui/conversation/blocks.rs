//! An answer in pieces: paragraphs, code, thoughts. A piece that is closed is looked at once; while an answer is written only
//! its open end is read again, and only pieces that can be seen are laid out.

use egui::{Align, CollapsingHeader, Frame, Label, Layout, Margin, RichText, Ui, Vec2};
use egui_commonmark::{CommonMarkCache, CommonMarkViewer};
use egui_extras::syntax_highlighting::{CodeTheme, highlight};
use egui_material_icons::icons::ICON_CONTENT_COPY;

use crate::{
    fence::Fence,
    ui::{
        theme::{Palette, RADIUS},
        widgets::icon_button,
    },
};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";

/// Bytes of a line after which it is known whether it begins an item of a list.
const MARK: usize = 6;

/// Type of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Markdown without code blocks.
    Text,
    /// Code, in this language.
    Code(String),
    /// The model's reasoning.
    Thought,
}

#[derive(Debug, Clone)]
struct Block {
    kind: Kind,
    text: String,
    /// Width it was laid out for, and its height then.
    size: Option<(f32, f32)>,
}

/// The pieces of one answer.
#[derive(Debug, Default)]
pub struct Blocks {
    closed: Vec<Block>,
    /// Bytes of the text that are closed.
    read: usize,
    open: Option<Block>,
    /// Bytes of the text when it was looked at, and whether it had ended.
    seen: (usize, bool),
}

impl Blocks {
    /// Reads what is new of a text that only grows; `ended`: all of it is closed.
    pub fn update(&mut self, text: &str, ended: bool) {
        if self.seen == (text.len(), ended) {
            return;
        }
        if text.len() < self.read || !text.is_char_boundary(self.read) {
            *self = Blocks::default();
        }
        while let Some((kind, content, length)) = next(&text[self.read..], ended) {
            let text = if kind == Kind::Text { lines(content) } else { content.to_owned() };
            self.closed.push(Block { kind, text, size: None });
            self.read += length;
        }
        let rest = &text[self.read..];
        self.open = (!rest.trim().is_empty()).then(|| {
            let (kind, content) = open(rest);
            Block { kind, text: content.to_owned(), size: None }
        });
        self.seen = (text.len(), ended);
    }

    /// Shows them.
    pub fn show(&mut self, ui: &mut Ui, cache: &mut CommonMarkCache) {
        let width = ui.available_width();
        for (n, block) in self.closed.iter_mut().enumerate() {
            let top = ui.cursor().min;
            if let Some((at, height)) = block.size
                && (at - width).abs() < 0.5
                && !ui.is_rect_visible(egui::Rect::from_min_size(top, Vec2::new(width, height)))
            {
                ui.allocate_space(Vec2::new(width, height));
                continue;
            }
            let shown = ui.push_id(n, |ui| block.show(ui, cache, true));
            block.size = Some((width, shown.response.rect.height()));
        }
        if let Some(block) = &self.open {
            ui.push_id(self.closed.len(), |ui| block.show(ui, cache, false));
        }
    }
}

impl Block {
    fn show(&self, ui: &mut Ui, cache: &mut CommonMarkCache, closed: bool) {
        match &self.kind {
            Kind::Text if closed => {
                CommonMarkViewer::new().show(ui, cache, &self.text);
            }
            Kind::Text => {
                ui.add(Label::new(self.text.trim_start_matches(['\n', '\r'])).wrap());
            }
            Kind::Code(language) => code(ui, language, &self.text, closed),
            Kind::Thought => {
                let title = if closed { "Thoughts" } else { "Thinking …" };
                let title = RichText::new(title).size(12.0).color(Palette::of(ui).muted);
                CollapsingHeader::new(title).id_salt("thought").default_open(!closed).show(ui, |ui| {
                    let words = RichText::new(self.text.trim()).color(Palette::of(ui).muted);
                    ui.add(Label::new(words).wrap());
                });
            }
        }
    }
}

fn code(ui: &mut Ui, language: &str, text: &str, closed: bool) {
    let palette = Palette::of(ui);
    let frame = Frame::new()
        .fill(palette.panel)
        .stroke(egui::Stroke::new(1.0, palette.line))
        .corner_radius(RADIUS)
        .inner_margin(Margin::same(12));
    frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.horizontal(|ui| {
            ui.label(RichText::new(language).size(12.0).color(palette.muted));
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if icon_button(ui, ICON_CONTENT_COPY, "Copy code").clicked() {
                    ui.copy_text(text.to_owned());
                }
            });
        });
        egui::ScrollArea::horizontal().id_salt("code").show(ui, |ui| {
            if closed {
                let job =
                    highlight(ui, ui.style(), &CodeTheme::from_style(ui.style()), text.trim_end(), extension(language));
                ui.add(Label::new(job).extend());
            } else {
                ui.add(Label::new(RichText::new(text).monospace()).extend());
            }
        });
    });
}

/// Markdown whose lines stay lines: models break them where they mean it, Markdown would run them together.
fn lines(text: &str) -> String {
    let mut lines = String::with_capacity(text.len() + 16);
    for line in text.split_inclusive('\n') {
        match line.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)) {
            Some(words) if !words.trim().is_empty() => {
                lines.push_str(words);
                lines.push_str("  \n");
            }
            _ => lines.push_str(line),
        }
    }
    lines
}

/// File extension of a language, by which the highlighter knows it.
fn extension(language: &str) -> &str {
    const NAMES: [(&str, &str); 16] = [
        ("rust", "rs"),
        ("python", "py"),
        ("javascript", "js"),
        ("jsx", "js"),
        ("typescript", "js"),
        ("ts", "js"),
        ("bash", "sh"),
        ("shell", "sh"),
        ("console", "sh"),
        ("c++", "cpp"),
        ("c#", "cs"),
        ("csharp", "cs"),
        ("golang", "go"),
        ("ruby", "rb"),
        ("perl", "pl"),
        ("haskell", "hs"),
    ];
    let known = NAMES.iter().find(|(name, _)| language.eq_ignore_ascii_case(name));
    known.map_or(language, |(_, extension)| extension)
}

/// The first closed piece of `text`: what it is, its words, and how many bytes of the text it takes. `None`: nothing is closed.
fn next(text: &str, ended: bool) -> Option<(Kind, &str, usize)> {
    let start = text.len() - blank(text).len();
    let body = &text[start..];
    if body.trim().is_empty() {
        return None;
    }
    if let Some(rest) = body.trim_start().strip_prefix(THINK) {
        let at = text.len() - rest.len();
        return match rest.find(THOUGHT) {
            Some(end) => Some((Kind::Thought, &rest[..end], at + end + THOUGHT.len())),
            None => ended.then_some((Kind::Thought, rest, text.len())),
        };
    }
    if let Some(fence) = Fence::opening(first_line(body)) {
        let language = fence.language;
        let at = start + line_end(body)?;
        let mut line = at;
        while line < text.len() {
            let whole = first_line(&text[line..]);
            let more = line_end(&text[line..]);
            if fence.closes(whole) {
                // The mark may still grow a language, and be another opening: only a full line closes.
                if more.is_some() || ended {
                    return Some((
                        Kind::Code(language.to_owned()),
                        &text[at..line],
                        more.map_or(text.len(), |n| line + n),
                    ));
                }
            }
            let Some(more) = more else { break };
            line += more;
        }
        return ended.then(|| (Kind::Code(language.to_owned()), &text[at..], text.len()));
    }
    let mut line = start;
    while let Some(more) = line_end(&text[line..]) {
        line += more;
        let rest = &text[line..];
        if rest.trim_start().is_empty() {
            break;
        }
        let upcoming = first_line(rest);
        let after = blank(rest);
        if upcoming.trim().is_empty() && !ended && line_end(after).is_none() && after.len() < MARK {
            // The first bytes of a line do not tell yet whether it is another item of a list.
            return None;
        }
        let parted = upcoming.trim().is_empty() && !goes_on(&text[start..line], after);
        if parted || Fence::opening(upcoming).is_some() || upcoming.trim_start().starts_with(THINK) {
            return Some((Kind::Text, &text[start..line], line));
        }
    }
    ended.then(|| (Kind::Text, &text[start..], text.len()))
}

/// Type of an open end.
fn open(text: &str) -> (Kind, &str) {
    let body = blank(text);
    if let Some(rest) = body.trim_start().strip_prefix(THINK) {
        return (Kind::Thought, rest);
    }
    match (Fence::opening(first_line(body)), line_end(body)) {
        (Some(fence), Some(end)) => (Kind::Code(fence.language.to_owned()), &body[end..]),
        _ => (Kind::Text, body),
    }
}

/// True if the text after blank lines belongs to the list before them.
fn goes_on(before: &str, after: &str) -> bool {
    let is_item = |line: &str| {
        let line = line.trim_start();
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        line.starts_with("- ")
            || line.starts_with("* ")
            || line.starts_with("+ ")
            || (number.len() < line.len() && (number.starts_with(". ") || number.starts_with(") ")))
    };
    let next = first_line(after);
    is_item(first_line(before)) && (is_item(next) || next.starts_with([' ', '\t']))
}

/// Without blank lines at the start.
fn blank(text: &str) -> &str {
    let mut rest = text;
    while let Some(end) = line_end(rest).filter(|end| rest[..*end].trim().is_empty()) {
        rest = &rest[end..];
    }
    rest
}

fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or_default()
}

/// Bytes of the first line with its end, if it has one.
fn line_end(text: &str) -> Option<usize> {
    text.find('\n').map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "<think>\nHm, 火?\n</think>\n\nFirst *words*,\nand more.\n\n1. one\n\n2. two\n   more\n\n```rust\nfn main() {}\n\n// end\n```\nLast\n~~~\ncode";

    fn all(blocks: &Blocks) -> Vec<(Kind, String)> {
        blocks.closed.iter().chain(&blocks.open).map(|it| (it.kind.clone(), it.text.trim().to_owned())).collect()
    }

    #[test]
    fn blocks_of_streamed_text_equal_those_of_the_whole_text() {
        let mut whole = Blocks::default();
        whole.update(TEXT, true);
        let want = [
            (Kind::Thought, "Hm, 火?"),
            (Kind::Text, "First *words*,  \nand more."),
            (Kind::Text, "1. one  \n\n2. two  \n   more"),
            (Kind::Code("rust".to_owned()), "fn main() {}\n\n// end"),
            (Kind::Text, "Last"),
            (Kind::Code(String::new()), "code"),
        ];
        assert_eq!(all(&whole), want.map(|(kind, text)| (kind, text.to_owned())));
        assert!(whole.open.is_none());

        let mut grown = Blocks::default();
        let mut closed = 0;
        for (end, c) in TEXT.char_indices() {
            grown.update(&TEXT[..end + c.len_utf8()], false);
            assert!(grown.closed.len() >= closed, "closed pieces stay");
            closed = grown.closed.len();
        }
        assert_eq!(closed, 5);
        assert!(grown.open.is_some(), "the end is open");
        grown.update(TEXT, true);
        assert_eq!(all(&grown), all(&whole));
    }

    #[test]
    fn code_is_highlighted_by_common_language_names() {
        let ctx = egui::Context::default();
        let style = ctx.global_style();
        let colours = |language: &str, text: &str| {
            let job = highlight(&ctx, &style, &CodeTheme::from_style(&style), text, extension(language));
            job.sections.iter().map(|section| section.format.color).collect::<std::collections::HashSet<_>>().len()
        };
        for language in ["rust", "Rust", "rs"] {
            assert!(colours(language, "fn main() { let x = \"text\"; } // end") > 2, "{language}");
        }
        for language in ["python", "py"] {
            assert!(colours(language, "def f(x):\n    return 'text' # end") > 2, "{language}");
        }
        assert!(colours("c++", "int main() { return 0; } // end") > 2 && colours("no language", "fn main() {}") == 1);
    }

    #[test]
    fn blocks_update_parses_the_open_end_only() {
        let mut blocks = Blocks::default();
        let text = "word word\n\n".repeat(1000);
        blocks.update(&(text.clone() + "the tail"), false);
        let (closed, read) = (blocks.closed.len(), blocks.read);
        blocks.update(&(text.clone() + "the tail grows"), false);
        assert_eq!((blocks.closed.len(), blocks.read), (closed, read));
        assert_eq!(blocks.open.as_ref().map(|it| it.text.trim()), Some("the tail grows"));
        blocks.update("other", true);
        assert_eq!(all(&blocks), [(Kind::Text, "other".to_owned())]);
    }
}
