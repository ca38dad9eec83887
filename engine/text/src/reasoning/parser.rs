//! Parses an answer while its tokens arrive.

use super::{
    format::{FormatGrammar, Marker, ReasoningFormat},
    transcript::Thoughts,
};

/// The part of an answer that a text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerPart {
    /// The model's reasoning.
    Thinking,
    /// The text for the user.
    Answer,
    /// A tool call.
    ToolCall,
}

/// Length of a header in bytes beyond which it is treated as text.
const HEADER: usize = 256;

/// The parser of one answer. The returned texts contain no markers and no parts of markers. They do
/// not depend on how the answer is split into pieces.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    format: ReasoningFormat,
    state: AnswerState,
    /// The end of the text so far, which may start a marker.
    held: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AnswerState {
    /// Only white space so far.
    Beginning,
    /// The name of a channel, up to the end of its line.
    Name,
    /// Text of this part.
    Body(AnswerPart),
    /// A call whose text will end with this string.
    Call(&'static str),
    /// A header; `marked` is true if it names a channel.
    Header { text: String, marked: bool },
    /// Between two messages.
    Between,
}

/// Texts with the parts that they belong to.
pub type AnswerPieces = Vec<(AnswerPart, String)>;

impl AnswerParser {
    pub(super) fn new(format: ReasoningFormat, prompt: &str, begun: Option<&Thoughts<'_>>) -> Self {
        let part = |begun: &Thoughts<'_>| if begun.closed { AnswerPart::Answer } else { AnswerPart::Thinking };
        let state = match (begun, format.grammar) {
            (Some(begun), _) => AnswerState::Body(part(begun)),
            (None, FormatGrammar::Tags { .. }) if format.opened_by(prompt) => AnswerState::Body(AnswerPart::Thinking),
            (None, FormatGrammar::Tags { .. }) => AnswerState::Beginning,
            (None, FormatGrammar::Harmony { start, message, .. }) => match prompt.rsplit_once(start.text) {
                Some((_, header)) if !header.contains(message.text) => {
                    AnswerState::Header { text: String::new(), marked: false }
                }
                _ => AnswerState::Body(AnswerPart::Answer),
            },
        };
        AnswerParser { format, state, held: String::new() }
    }

    /// True if `id` is the token of a marker, which must be passed to
    /// [`AnswerParser::push_marker`].
    pub fn is_marker(&self, id: u32) -> bool {
        self.markers().iter().any(|marker| marker.token == Some(id))
    }

    /// Text of the marker with the token `id`.
    pub fn marker_text(&self, id: u32) -> &'static str {
        self.markers().iter().find(|marker| marker.token == Some(id)).map_or("", |marker| marker.text)
    }

    /// Reads the token of a marker. `visible` is true if the vocabulary treats it as text, as it is
    /// wherever the marker has no meaning.
    pub fn push_marker(&mut self, id: u32, visible: bool) -> AnswerPieces {
        let mut out = AnswerPieces::new();
        let Some(marker) = self.markers().into_iter().find(|marker| marker.token == Some(id)) else { return out };
        let held = std::mem::take(&mut self.held);
        // White space before thoughts is dropped.
        if self.state != AnswerState::Beginning || !self.expected().contains(&marker) {
            self.emit(held, &mut out);
        }
        if self.expected().contains(&marker) {
            self.apply(marker, &mut out);
        } else if visible && matches!(self.state, AnswerState::Beginning | AnswerState::Body(_)) {
            self.emit(marker.text.to_owned(), &mut out);
        }
        out
    }

    /// Reads a piece of text.
    pub fn push(&mut self, piece: &str) -> AnswerPieces {
        let mut out = AnswerPieces::new();
        self.held.push_str(piece);
        while self.step(&mut out) {}
        out
    }

    /// True if text for the user may follow.
    pub fn is_answering(&self) -> bool {
        matches!(self.state, AnswerState::Beginning | AnswerState::Body(AnswerPart::Answer))
    }

    /// True if thoughts may follow.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, AnswerState::Name | AnswerState::Body(AnswerPart::Thinking))
    }

    /// True if [`AnswerParser::finish`] would return something.
    pub fn is_holding(&self) -> bool {
        let header = matches!(&self.state, AnswerState::Header { text, marked: false } if !text.is_empty());
        !self.held.is_empty() || header || matches!(self.state, AnswerState::Call(_))
    }

    /// Returns the text held back, because no more text follows. A call is closed if the model has
    /// `ended`, and stays open if the answer was cut short.
    pub fn finish(&mut self, ended: bool) -> AnswerPieces {
        let mut out = AnswerPieces::new();
        let held = std::mem::take(&mut self.held);
        match &self.state {
            AnswerState::Header { marked: false, .. } => {
                self.emit(held, &mut out);
                self.give_up(&mut out);
            }
            AnswerState::Name => {}
            _ => self.emit(held, &mut out),
        }
        if ended {
            self.close(&mut out);
        }
        out
    }

    /// Every marker of the format.
    fn markers(&self) -> Vec<Marker> {
        match self.format.grammar {
            FormatGrammar::Tags { open, close, .. } => vec![open, close],
            FormatGrammar::Harmony { start, channel, message, end, ends } => {
                vec![start, channel, message, end, ends[0], ends[1]]
            }
        }
    }

    /// The markers that have a meaning in the current state.
    fn expected(&self) -> Vec<Marker> {
        match (self.format.grammar, &self.state) {
            (FormatGrammar::Tags { open, .. }, AnswerState::Beginning) => vec![open],
            (FormatGrammar::Tags { close, .. }, AnswerState::Body(AnswerPart::Thinking) | AnswerState::Name) => {
                vec![close]
            }
            (FormatGrammar::Tags { .. }, _) => Vec::new(),
            (
                FormatGrammar::Harmony { start, channel, message, .. },
                AnswerState::Header { .. } | AnswerState::Between,
            ) => {
                vec![start, channel, message]
            }
            (FormatGrammar::Harmony { start, channel, end, ends, .. }, _) => {
                vec![start, channel, end, ends[0], ends[1]]
            }
        }
    }

    /// Advances in the held text; false if more text is needed.
    fn step(&mut self, out: &mut AnswerPieces) -> bool {
        let texts: Vec<Marker> = self.expected().into_iter().filter(|marker| marker.token.is_none()).collect();
        if self.state == AnswerState::Beginning {
            let body = self.held.trim_start();
            if let Some(marker) = texts.iter().find(|marker| body.starts_with(marker.text)) {
                self.held = body[marker.text.len()..].to_owned();
                self.apply(*marker, out);
                return true;
            }
            if body.is_empty() || texts.iter().any(|marker| marker.text.starts_with(body)) {
                return false;
            }
            self.state = AnswerState::Body(AnswerPart::Answer);
            return true;
        }
        if self.state == AnswerState::Name {
            return match self.held.find('\n') {
                Some(end) if end <= HEADER => {
                    self.held.drain(..=end);
                    self.state = AnswerState::Body(AnswerPart::Thinking);
                    true
                }
                None if self.held.len() <= HEADER => false,
                _ => {
                    self.state = AnswerState::Body(AnswerPart::Thinking);
                    true
                }
            };
        }
        let found = texts.iter().filter_map(|marker| Some((self.held.find(marker.text)?, *marker)));
        if let Some((at, marker)) = found.min_by_key(|(at, _)| *at) {
            let rest = self.held.split_off(at + marker.text.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            self.emit(before, out);
            self.apply(marker, out);
            return true;
        }
        let possible = texts.iter().map(|marker| overlap(&self.held, marker.text)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - possible);
        let certain = std::mem::replace(&mut self.held, rest);
        self.emit(certain, out);
        false
    }

    /// Emits text that is not a marker.
    fn emit(&mut self, piece: String, out: &mut AnswerPieces) {
        if piece.is_empty() {
            return;
        }
        match &mut self.state {
            AnswerState::Beginning => {
                self.state = AnswerState::Body(AnswerPart::Answer);
                out.push((AnswerPart::Answer, piece));
            }
            AnswerState::Body(part) => out.push((*part, piece)),
            AnswerState::Call(_) => out.push((AnswerPart::ToolCall, piece)),
            AnswerState::Header { text, .. } => {
                text.push_str(&piece);
                if text.len() > HEADER {
                    self.give_up(out);
                }
            }
            AnswerState::Name | AnswerState::Between => {}
        }
    }

    /// Treats a header as text, because the model does not follow its format.
    fn give_up(&mut self, out: &mut AnswerPieces) {
        if let AnswerState::Header { text, .. } =
            std::mem::replace(&mut self.state, AnswerState::Body(AnswerPart::Answer))
            && !text.is_empty()
        {
            out.push((AnswerPart::Answer, text));
        }
    }

    /// Ends a call.
    fn close(&mut self, out: &mut AnswerPieces) {
        if let AnswerState::Call(end) = self.state {
            out.push((AnswerPart::ToolCall, end.to_owned()));
            self.state = AnswerState::Between;
        }
    }

    /// Returns the header so far and moves to the state between two messages.
    fn take_header(&mut self) -> String {
        match std::mem::replace(&mut self.state, AnswerState::Between) {
            AnswerState::Header { text, .. } => text,
            _ => String::new(),
        }
    }

    fn apply(&mut self, marker: Marker, out: &mut AnswerPieces) {
        self.close(out);
        let next = match self.format.grammar {
            FormatGrammar::Tags { open, named: true, .. } if marker == open => AnswerState::Name,
            FormatGrammar::Tags { open, .. } if marker == open => AnswerState::Body(AnswerPart::Thinking),
            FormatGrammar::Tags { .. } => AnswerState::Body(AnswerPart::Answer),
            FormatGrammar::Harmony { start, channel, message, .. } => {
                if marker == start {
                    AnswerState::Header { text: String::new(), marked: false }
                } else if marker == channel {
                    AnswerState::Header { text: self.take_header() + channel.text, marked: true }
                } else if marker == message {
                    body(&self.take_header(), channel.text, out)
                } else {
                    AnswerState::Between
                }
            }
        };
        self.state = next;
    }
}

/// The state after a Harmony `header`. The beginning of a call is rewritten to the form of other
/// models.
fn body(header: &str, channel: &str, out: &mut AnswerPieces) -> AnswerState {
    let word = |text: &str| text.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default().to_owned();
    if let Some((_, recipient)) = header.split_once("to=") {
        let recipient = word(recipient);
        let function = recipient.strip_prefix("functions.");
        let (begin, end) = match function {
            Some(name) => (format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": "), "}\n</tool_call>"),
            None => (format!("<tool_call>\n{recipient}\n"), "\n</tool_call>"),
        };
        out.push((AnswerPart::ToolCall, begin));
        return AnswerState::Call(end);
    }
    let name = header.split_once(channel).map(|(_, name)| word(name));
    AnswerState::Body(match name.as_deref() {
        Some("analysis") => AnswerPart::Thinking,
        _ => AnswerPart::Answer,
    })
}

/// Length of the longest proper prefix of `marker` that `text` ends with.
pub fn overlap(text: &str, marker: &str) -> usize {
    let fits = |length: &usize| marker.is_char_boundary(*length) && text.ends_with(&marker[..*length]);
    (1..marker.len()).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests;
