//! Splits an answer into reasoning, content and tool calls for clients.

use serde_json::{Value, json};
use thermocline_engine::{
    session::AnswerText,
    tokenizer::{
        reasoning::AnswerPart,
        tools::{ToolEvent, ToolFormat, ToolParser},
    },
};

/// Characters of a tool call's identifier. Mistral's templates accept no more and no fewer.
const ID_LENGTH: usize = 9;

/// One piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPiece {
    /// The model's reasoning.
    Reasoning(String),
    /// Text for the user.
    Content(String),
    /// A tool call begins.
    Call {
        /// Number of the call in the answer.
        index: usize,
        /// Identifier of the call.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// More of the JSON of a tool call's arguments.
    Arguments {
        /// Number of the call.
        index: usize,
        /// The text.
        text: String,
    },
}

impl AnswerPiece {
    /// The piece's text for the user, if it is content.
    pub fn content(&self) -> Option<&str> {
        if let AnswerPiece::Content(text) = self { Some(text) } else { None }
    }

    /// The piece's reasoning, if it is reasoning.
    pub fn reasoning(&self) -> Option<&str> {
        if let AnswerPiece::Reasoning(text) = self { Some(text) } else { None }
    }
}

/// A tool call of a complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompleteCall {
    /// Identifier of the call.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

/// Collects the tool calls of a complete answer.
pub fn complete_calls(pieces: &[AnswerPiece]) -> Vec<CompleteCall> {
    let mut calls: Vec<CompleteCall> = Vec::new();
    for piece in pieces {
        match (piece, calls.last_mut()) {
            (AnswerPiece::Call { id, name, .. }, _) => {
                calls.push(CompleteCall { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            (AnswerPiece::Arguments { text, .. }, Some(call)) => call.arguments.push_str(text),
            _ => {}
        }
    }
    calls
}

/// Parses a call's arguments as JSON. Models may write invalid JSON.
pub fn json_arguments(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!({ "arguments": text }))
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedTools {
    /// Format in which the model calls tools.
    pub format: ToolFormat,
    /// Definitions of the tools, in OpenAI's form.
    pub definitions: Vec<Value>,
}

/// The reader of one answer. It drops line breaks before reasoning, and between reasoning and
/// content.
#[derive(Debug)]
pub struct AnswerReader {
    parser: Option<ToolParser>,
    calls: usize,
    /// A call has begun and has not ended.
    in_call: bool,
    /// A call before the last one never ended.
    is_broken: bool,
    thought: bool,
    spoke: bool,
}

impl AnswerReader {
    /// Creates a reader of the answer to a request with `tools`.
    pub fn new(tools: Option<&RequestedTools>) -> Self {
        let parser = tools.map(|tools| ToolParser::new(tools.format.clone(), &tools.definitions));
        AnswerReader { parser, calls: 0, in_call: false, is_broken: false, thought: false, spoke: false }
    }

    /// True if the answer has called tools, and all calls are complete.
    pub fn called(&self) -> bool {
        self.calls > 0 && !self.in_call && !self.is_broken
    }

    /// True if the answer has begun to call a tool.
    pub fn has_begun_call(&self) -> bool {
        self.calls > 0
    }

    /// Reads new text.
    pub fn push(&mut self, text: &AnswerText) -> Vec<AnswerPiece> {
        let mut out = Vec::new();
        for (part, piece) in text.pieces() {
            if part == AnswerPart::Thinking {
                let piece = if self.thought { piece } else { piece.trim_start_matches('\n') };
                if !piece.is_empty() {
                    self.thought = true;
                    out.push(AnswerPiece::Reasoning(piece.to_owned()));
                }
                continue;
            }
            match &mut self.parser {
                Some(parser) => {
                    let events = parser.push(piece);
                    self.convert(events, &mut out);
                }
                None => self.push_content(piece, &mut out),
            }
        }
        out
    }

    /// Returns the pieces held back. No more text may follow.
    pub fn finish(&mut self) -> Vec<AnswerPiece> {
        let mut out = Vec::new();
        let events = self.parser.as_mut().map(ToolParser::finish).unwrap_or_default();
        self.convert(events, &mut out);
        out
    }

    fn push_content(&mut self, piece: &str, out: &mut Vec<AnswerPiece>) {
        let piece = if self.thought && !self.spoke { piece.trim_start_matches('\n') } else { piece };
        if !piece.is_empty() {
            self.spoke = true;
            out.push(AnswerPiece::Content(piece.to_owned()));
        }
    }

    fn convert(&mut self, events: Vec<ToolEvent>, out: &mut Vec<AnswerPiece>) {
        for event in events {
            match event {
                ToolEvent::Text(text) => self.push_content(&text, out),
                ToolEvent::Begin { name } => {
                    out.push(AnswerPiece::Call { index: self.calls, id: new_id(), name });
                    self.calls += 1;
                    self.is_broken |= std::mem::replace(&mut self.in_call, true);
                }
                ToolEvent::Arguments(text) => {
                    out.push(AnswerPiece::Arguments { index: self.calls.saturating_sub(1), text });
                }
                ToolEvent::End => self.in_call = false,
            }
        }
    }
}

/// Creates an identifier for a call: letters and digits.
fn new_id() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    // The factor is odd, so that different numbers stay different.
    let mut number = time.wrapping_add(count << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let letter = |_| {
        number = number.rotate_left(5);
        char::from(LETTERS[(number & 31) as usize])
    };
    (0..ID_LENGTH).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use thermocline_engine::tokenizer::tools::ToolFormat;

    use super::*;

    fn text(pieces: &[(AnswerPart, &str)]) -> AnswerText {
        let mut text = AnswerText::default();
        pieces.iter().for_each(|(part, piece)| text.push(*part, piece));
        text
    }

    #[test]
    fn reasoning_and_content_are_apart_without_the_line_ends_between() {
        let mut reader = AnswerReader::new(None);
        let answer = text(&[
            (AnswerPart::Thinking, "\n"),
            (AnswerPart::Thinking, "Hm.\n"),
            (AnswerPart::Answer, "\n\nYes"),
            (AnswerPart::Answer, "\n."),
        ]);
        let pieces = reader.push(&answer);
        let want = [AnswerPiece::Reasoning("Hm.\n".to_owned()), AnswerPiece::Content("Yes\n.".to_owned())];
        assert_eq!(pieces, want);
        let plain = AnswerReader::new(None).push(&text(&[(AnswerPart::Answer, "\nYes")]));
        assert_eq!(plain, [AnswerPiece::Content("\nYes".to_owned())]);
    }

    #[test]
    fn calls_have_numbers_and_identifiers_of_their_own() {
        let tools = RequestedTools { format: ToolFormat::forced(), definitions: vec![json!({})] };
        let mut reader = AnswerReader::new(Some(&tools));
        let calls = "[{\"name\": \"a\", \"arguments\": {\"x\": 1}}, {\"name\": \"b\"}]";
        let mut pieces = reader.push(&text(&[(AnswerPart::Answer, calls)]));
        pieces.extend(reader.finish());
        let [
            AnswerPiece::Call { index: 0, id: first, name: a },
            AnswerPiece::Arguments { index: 0, text: arguments },
            AnswerPiece::Call { index: 1, id: second, name: b },
            AnswerPiece::Arguments { index: 1, text: none },
        ] = &pieces[..]
        else {
            panic!("{pieces:?}")
        };
        assert_eq!((&**a, &**b, &**arguments, &**none, reader.called()), ("a", "b", "{\"x\": 1}", "{}", true));
        let mut reader = AnswerReader::new(Some(&tools));
        assert!(!reader.called());
        reader.push(&text(&[(AnswerPart::Answer, "[{\"name\": \"a\"}, {\"name\": \"b\"")]));
        assert_eq!((reader.finish(), reader.called()), (Vec::new(), false));
        assert!(first != second && first.len() == 9 && first.chars().all(char::is_alphanumeric), "{first} {second}");
    }
}
