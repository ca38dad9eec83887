//! Separates the text of an answer from its tool calls and leaves both as written.

use serde_json::Value;

use super::{ToolEvent, ToolFormat, ToolParser, parser::ReadAnswer};
use crate::reasoning::AnswerPieces;

/// The splitter of one answer. Text that starts like a call is held back until the name is known.
/// Control tokens in calls are marked; other text is plain.
#[derive(Debug, Clone)]
pub struct CallSplitter {
    parser: ToolParser,
    calls: usize,
    /// True while a call has started and not ended.
    in_call: bool,
    /// True if a call broke off.
    is_broken: bool,
}

impl CallSplitter {
    /// A splitter for a model that was given `definitions`, in OpenAI's form.
    pub fn new(format: ToolFormat, definitions: &[Value]) -> Self {
        let parser = ToolParser::new(format, definitions);
        CallSplitter { parser, calls: 0, in_call: false, is_broken: false }
    }

    /// Reads a piece of the answer.
    pub fn push(&mut self, piece: &str) -> AnswerPieces {
        let read = self.parser.read(piece, false);
        self.pieces(read)
    }

    /// Returns the text held back, because no more text follows. The start of a call counts as part
    /// of the call.
    pub fn finish(&mut self) -> AnswerPieces {
        let read = self.parser.read("", true);
        self.pieces(read)
    }

    /// True if [`CallSplitter::finish`] would return something.
    pub fn is_holding(&self) -> bool {
        self.parser.is_holding()
    }

    /// True if there are calls and all of them are complete.
    pub fn has_whole_calls(&self) -> bool {
        self.calls > 0 && !self.in_call && !self.is_broken
    }

    fn pieces(&mut self, read: ReadAnswer) -> AnswerPieces {
        for event in &read.events {
            match event {
                ToolEvent::Begin { .. } => {
                    self.is_broken |= std::mem::replace(&mut self.in_call, true);
                    self.calls += 1;
                }
                ToolEvent::End => self.in_call = false,
                ToolEvent::Text(_) | ToolEvent::Arguments(_) => {}
            }
        }
        read.raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reasoning::AnswerPart;

    fn split(format: ToolFormat, pieces: &[&str]) -> String {
        let mut splitter = CallSplitter::new(format, &[]);
        let mut all: AnswerPieces = pieces.iter().flat_map(|piece| splitter.push(piece)).collect();
        let held = splitter.is_holding();
        let rest = splitter.finish();
        assert!(held || rest.is_empty());
        all.extend(rest);
        let mut shown = String::new();
        for (part, text) in all {
            let mark = if part == AnswerPart::Answer { 'w' } else { 'c' };
            if !shown.ends_with(&format!("{mark}]")) {
                shown.push('[');
            } else {
                shown.truncate(shown.len() - 3);
            }
            shown.push_str(&format!("{text}|{mark}]"));
        }
        shown
    }

    #[test]
    fn words_and_calls_are_apart_however_they_arrive() {
        let tags = || ToolFormat::of_texts("<tool_call>");
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b, c\"}}\n</tool_call>";
        let other = "<tool_call>g<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>";
        let brace = "<|tool_call>call:f{a:1}<tool_call|>";
        for (format, text, want) in [
            (tags(), "a < b".to_owned(), "[a < b|w]".to_owned()),
            (tags(), format!("Hm.\n{call}\n{other}\n"), format!("[Hm.\n|w][{call}\n{other}\n|c]")),
            (tags(), format!("{call}\n\nDone."), format!("[{call}|c][\n\nDone.|w]")),
            (
                tags(),
                "x <tool_call>\n{\"name\": \"f\", \"arg".to_owned(),
                "[x |w][<tool_call>\n{\"name\": \"f\", \"arg|c]".to_owned(),
            ),
            (
                ToolFormat::of_texts("[TOOL_CALLS]"),
                "a[TOOL_CALLS]f[ARGS]{\"x\": 1}b".to_owned(),
                "[a|w][[TOOL_CALLS]f[ARGS]{\"x\": 1}|c][b|w]".to_owned(),
            ),
            (ToolFormat::of_texts("<|tool_call>"), format!("a{brace}b"), format!("[a|w][{brace}|c][b|w]")),
            (
                ToolFormat::forced(),
                "{\"name\": \"f\", \"arguments\": {}}".to_owned(),
                "[{\"name\": \"f\", \"arguments\": {}}|c]".to_owned(),
            ),
            (ToolFormat::of_texts("<|python_tag|>"), "{\"a\": 1} b".to_owned(), "[{\"a\": 1} b|w]".to_owned()),
        ] {
            assert_eq!(split(format.clone(), &[&text]), want);
            let pieces: Vec<String> = text.chars().map(String::from).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(split(format, &pieces), want);
        }
    }
}
