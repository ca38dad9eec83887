//! Tells the words of an answer from its calls of tools, and leaves both as they are written.

use serde_json::Value;

use super::{ToolEvent, ToolFormat, ToolParser};
use crate::tokenizer::reasoning::AnswerPart;

/// Texts with the parts they belong to.
type Pieces = Vec<(AnswerPart, String)>;

/// The splitter of one answer. A text that begins like a call is held back until its name is known.
#[derive(Debug, Clone)]
pub(crate) struct CallSplitter {
    parser: ToolParser,
    /// The text from an opening bracket on, while it may be words.
    pending: String,
    /// The name of the call being read is known.
    begun: bool,
    /// The last text that was no white space belonged to a call.
    after_call: bool,
}

impl CallSplitter {
    /// A splitter of answers of a model that was given `definitions`, in OpenAI's form.
    pub fn new(format: ToolFormat, definitions: &[Value]) -> Self {
        let parser = ToolParser::new(format, definitions);
        CallSplitter { parser, pending: String::new(), begun: false, after_call: false }
    }

    /// Reads a piece of the answer.
    pub fn push(&mut self, piece: &str) -> Pieces {
        let mut out = Pieces::new();
        self.parser.held.push_str(piece);
        loop {
            let (before, was_text) = (self.parser.held.clone(), self.parser.is_in_text());
            let mut events = Vec::new();
            let goes_on = self.parser.step(&mut events);
            let read = &before[..before.len() - self.parser.held.len()];
            let opened = if was_text { self.parser.opening() } else { read.len() };
            let (words, call) = read.split_at(read.len() - opened.min(read.len()));
            self.add_words(words, &mut out);
            self.pending.push_str(call);
            self.begun |= events.iter().any(|event| matches!(event, ToolEvent::Begin { .. }));
            let in_text = self.parser.is_in_text();
            // JSON without a name has come to its end.
            if self.begun || in_text || self.parser.is_closing() {
                let part = if self.begun { AnswerPart::ToolCall } else { AnswerPart::Answer };
                self.after_call |= self.begun;
                let pending = std::mem::take(&mut self.pending);
                self.add(part, &pending, &mut out);
            }
            self.begun &= !in_text;
            if !goes_on {
                return out;
            }
        }
    }

    /// The text held back; no more follows. The beginning of a call belongs to it.
    pub fn finish(&mut self) -> Pieces {
        let mut out = Pieces::new();
        let held = std::mem::take(&mut self.parser.held);
        if self.parser.is_in_text() {
            self.add_words(&held, &mut out);
        } else {
            let call = std::mem::take(&mut self.pending) + &held;
            self.add(AnswerPart::ToolCall, &call, &mut out);
        }
        self.parser.finish();
        out
    }

    /// True if [`CallSplitter::finish`] would return something.
    pub fn is_holding(&self) -> bool {
        !self.pending.is_empty() || !self.parser.held.is_empty()
    }

    /// White space behind a call is no word.
    fn add_words(&mut self, words: &str, out: &mut Pieces) {
        let part = if self.after_call && words.trim().is_empty() { AnswerPart::ToolCall } else { AnswerPart::Answer };
        self.add(part, words, out);
    }

    fn add(&mut self, part: AnswerPart, text: &str, out: &mut Pieces) {
        self.after_call &= text.is_empty() || part == AnswerPart::ToolCall;
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some((last, whole)) if *last == part => whole.push_str(text),
            _ => out.push((part, text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(format: ToolFormat, pieces: &[&str]) -> String {
        let mut splitter = CallSplitter::new(format, &[]);
        let mut all: Pieces = pieces.iter().flat_map(|piece| splitter.push(piece)).collect();
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
