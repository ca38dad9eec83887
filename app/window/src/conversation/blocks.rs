//! An answer as blocks: text, code, thoughts. A closed block is parsed once. While an answer is
//! written, only its open last block is parsed again. Unchanged parts of that block keep their
//! layout. Only visible blocks are drawn.

use std::borrow::Cow;

use egui::{CollapsingHeader, Label, RichText, Ui, Vec2};

use thermocline_engine::tokenizer::fence::Fence;
use thermocline_rich_text::{
    markdown::{CodeColours, MarkdownDocument, Targets, definition, parts, show_code},
    theme::Palette,
};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";

/// Bytes of a line that suffice to decide if it begins a list item.
const MARK: usize = 6;

/// Bytes of a list after which its next item begins a new block. Parsing a whole long list for
/// every new token takes too long.
const LIST: usize = 8 * 1024;

/// The type of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MessageBlockKind {
    /// Markdown without code blocks.
    Text,
    /// Code in this language.
    Code(String),
    /// The model's reasoning.
    Thought,
}

#[derive(Debug)]
struct MessageBlock {
    kind: MessageBlockKind,
    text: String,
    /// The parsed Markdown, as of the last time it was shown.
    document: MarkdownDocument,
    /// True if `document` matches `text`.
    is_read: bool,
    /// The syntax colours of code.
    colours: CodeColours,
    /// Width of the last layout and the height at that width, in points.
    size: Option<(f32, f32)>,
}

/// The blocks of one answer.
#[derive(Debug, Default)]
pub struct MessageBlocks {
    closed: Vec<MessageBlock>,
    /// Bytes of the text in closed blocks.
    read: usize,
    open: Option<MessageBlock>,
    /// Length of the text in bytes at the last update, and true if the text had ended.
    seen: (usize, bool),
    /// Targets of links. A block may use links that another block defines.
    targets: Targets,
    /// The text without Markdown, and its length in bytes.
    plain: Option<(usize, MarkdownDocument)>,
}

impl MessageBlocks {
    /// Parses the new part of a text that only grows. `ended` closes all blocks.
    pub fn update(&mut self, text: &str, ended: bool) {
        if self.seen == (text.len(), ended) {
            return;
        }
        if text.len() < self.read || !text.is_char_boundary(self.read) {
            *self = MessageBlocks::default();
        }
        // The first new block continues the block that was open.
        let mut before = self.open.take().map(|block| block.document);
        while let Some((kind, content, length)) = next(&text[self.read..], ended) {
            let defined = self.targets.len();
            if kind == MessageBlockKind::Text {
                self.targets.extend(content.lines().filter_map(definition));
            }
            self.closed.push(MessageBlock::new(kind, content, before.take()));
            self.read += length;
            if self.targets.len() > defined {
                self.closed.iter_mut().for_each(MessageBlock::read_again);
            }
        }
        let rest = &text[self.read..];
        self.open = (!rest.trim().is_empty()).then(|| {
            let (kind, content) = open(rest);
            MessageBlock::new(kind, content, before)
        });
        self.seen = (text.len(), ended);
    }

    /// The text of a message, laid out without Markdown.
    pub fn plain(&mut self, text: &str) -> &mut MarkdownDocument {
        if self.plain.as_ref().is_some_and(|(length, _)| *length != text.len()) {
            self.plain = None;
        }
        let (_, document) = self.plain.get_or_insert_with(|| (text.len(), MarkdownDocument::plain(text)));
        document
    }

    /// Shows the blocks.
    pub fn show(&mut self, ui: &mut Ui) {
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
            let shown = ui.push_id(n, |ui| block.show(ui, &self.targets, true));
            block.size = Some((width, shown.response.rect.height()));
        }
        if let Some(block) = &mut self.open {
            ui.push_id(self.closed.len(), |ui| block.show(ui, &self.targets, false));
        }
    }
}

impl MessageBlock {
    fn new(kind: MessageBlockKind, text: Cow<'_, str>, before: Option<MarkdownDocument>) -> Self {
        let (text, document, colours) = (text.into_owned(), before.unwrap_or_default(), CodeColours::default());
        MessageBlock { kind, text, document, is_read: false, colours, size: None }
    }

    /// Marks a text with links to be parsed again when it is next shown.
    fn read_again(&mut self) {
        if self.text.contains('[') {
            (self.is_read, self.size) = (false, None);
        }
    }

    fn show(&mut self, ui: &mut Ui, targets: &Targets, closed: bool) {
        match &self.kind {
            MessageBlockKind::Text => {
                if !std::mem::replace(&mut self.is_read, true) {
                    self.document.read(&self.text, targets);
                }
                self.document.show(ui, closed);
            }
            MessageBlockKind::Code(language) => show_code(ui, language, &self.text, closed, &mut self.colours),
            MessageBlockKind::Thought => {
                let title = if closed { "Thoughts" } else { "Thinking …" };
                let title = RichText::new(title).size(12.0).color(Palette::of(ui).muted);
                CollapsingHeader::new(title).id_salt("thought").default_open(!closed).show(ui, |ui| {
                    parts(ui, self.text.trim(), |ui, part| {
                        ui.add(Label::new(RichText::new(part).color(Palette::of(ui).muted)).wrap());
                    });
                });
            }
        }
    }
}

/// The first closed block of `text`: its type, its content, and its length in bytes of `text`.
/// `None` if no block is closed.
fn next(text: &str, ended: bool) -> Option<(MessageBlockKind, Cow<'_, str>, usize)> {
    let start = text.len() - blank(text).len();
    let body = &text[start..];
    if body.trim().is_empty() {
        return None;
    }
    if let Some(rest) = body.trim_start().strip_prefix(THINK) {
        let at = text.len() - rest.len();
        return match rest.find(THOUGHT) {
            Some(end) => Some((MessageBlockKind::Thought, rest[..end].into(), at + end + THOUGHT.len())),
            None => ended.then_some((MessageBlockKind::Thought, rest.into(), text.len())),
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
                // An unfinished line may still gain a language and become another opening fence.
                // Only a complete line closes the block.
                if more.is_some() || ended {
                    return Some((
                        MessageBlockKind::Code(language.to_owned()),
                        fence.code(&text[at..line]),
                        more.map_or(text.len(), |n| line + n),
                    ));
                }
            }
            let Some(more) = more else { break };
            line += more;
        }
        return ended.then(|| (MessageBlockKind::Code(language.to_owned()), fence.code(&text[at..]), text.len()));
    }
    let mut line = start;
    // The code fence inside a list item. It is part of the list.
    let mut code: Option<Fence<'_>> = None;
    while let Some(more) = line_end(&text[line..]) {
        let current = first_line(&text[line..]);
        line += more;
        let rest = &text[line..];
        if code.take_if(|fence| fence.closes(current)).is_none() && code.is_some() {
            continue;
        }
        if rest.trim_start().is_empty() {
            break;
        }
        let upcoming = first_line(rest);
        if is_item(first_line(body)) && (upcoming.starts_with(' ') || !current.trim().is_empty()) {
            code = Fence::opening(upcoming);
            if code.is_some() {
                let Some(more) = line_end(rest) else { break };
                line += more;
                continue;
            }
        }
        let after = blank(rest);
        if upcoming.trim().is_empty() && !ended && line_end(after).is_none() && after.len() < MARK {
            // The first bytes of a line do not show yet whether it is another list item.
            return None;
        }
        let parted = upcoming.trim().is_empty() && !goes_on(&text[start..line], after);
        let parted = parted || is_long_list(&text[start..line], after);
        if parted || Fence::opening(upcoming).is_some() || upcoming.trim_start().starts_with(THINK) {
            return Some((MessageBlockKind::Text, text[start..line].into(), line));
        }
    }
    ended.then(|| (MessageBlockKind::Text, text[start..].into(), text.len()))
}

/// The type and content of the open last block.
fn open(text: &str) -> (MessageBlockKind, Cow<'_, str>) {
    let body = blank(text);
    if let Some(rest) = body.trim_start().strip_prefix(THINK) {
        return (MessageBlockKind::Thought, rest.into());
    }
    match (Fence::opening(first_line(body)), line_end(body)) {
        (Some(fence), Some(end)) => (MessageBlockKind::Code(fence.language.to_owned()), fence.code(&body[end..])),
        _ => (MessageBlockKind::Text, body.into()),
    }
}

/// True if the text after blank lines continues the list before them.
fn goes_on(before: &str, after: &str) -> bool {
    let next = first_line(after);
    is_item(first_line(before)) && (is_item(next) || next.starts_with([' ', '\t']))
}

/// True if `before` is a long list and `after` begins with a list item.
fn is_long_list(before: &str, after: &str) -> bool {
    before.len() > LIST && is_item(first_line(before)) && is_item(first_line(after)) && !after.starts_with([' ', '\t'])
}

/// True for a line that begins a list item.
fn is_item(line: &str) -> bool {
    let line = line.trim_start();
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with("- ")
        || line.starts_with("* ")
        || line.starts_with("+ ")
        || (number.len() < line.len() && (number.starts_with(". ") || number.starts_with(") ")))
}

/// Returns `text` without blank lines at the start.
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

/// Length of the first line with its line break, in bytes. `None` without a line break.
fn line_end(text: &str) -> Option<usize> {
    text.find('\n').map(|at| at + 1)
}

#[cfg(test)]
mod tests;
