//! Finds tool calls at the end of thoughts. Some models call a tool before they close their
//! thoughts.

use thermocline_text::{
    reasoning::AnswerPart,
    tools::{CallSplitter, plain},
};

/// Texts with the parts that they belong to.
type PartPieces = Vec<(AnswerPart, String)>;

/// Reads thoughts. It holds back possible tool calls until more thoughts follow them or the text
/// ends.
#[derive(Debug)]
pub(super) struct ThoughtCalls {
    /// A splitter that has read no text.
    fresh: CallSplitter,
    splitter: CallSplitter,
    /// Calls that no thought has followed yet.
    tail: String,
}

impl ThoughtCalls {
    /// Creates a reader of thoughts from a `splitter` that has read no text.
    pub fn new(splitter: CallSplitter) -> Self {
        ThoughtCalls { fresh: splitter.clone(), splitter, tail: String::new() }
    }

    /// Reads a piece of thoughts.
    pub fn push(&mut self, piece: &str) -> PartPieces {
        let pieces = self.splitter.push(piece);
        self.thoughts(pieces)
    }

    /// Returns the text held back. It is calls if the answer ended within the thoughts and all of
    /// these calls are complete, and otherwise thoughts.
    pub fn finish(&mut self, ended_within: bool) -> PartPieces {
        let pieces = self.splitter.finish();
        let mut out = self.thoughts(pieces);
        self.splitter = self.fresh.clone();
        let tail = std::mem::take(&mut self.tail);
        if ended_within && self.are_whole_calls(&tail) {
            out.push((AnswerPart::ToolCall, tail));
        } else if !tail.is_empty() {
            out.push((AnswerPart::Thinking, plain(&tail)));
        }
        out
    }

    /// True if `text` consists only of complete calls.
    fn are_whole_calls(&self, text: &str) -> bool {
        let mut splitter = self.fresh.clone();
        let pieces = [splitter.push(text), splitter.finish()].concat();
        splitter.has_whole_calls() && pieces.iter().all(|(part, _)| *part == AnswerPart::ToolCall)
    }

    /// True if [`ThoughtCalls::finish`] would return something.
    pub fn is_holding(&self) -> bool {
        !self.tail.is_empty() || self.splitter.is_holding()
    }

    /// Returns the pieces that are certainly thoughts.
    fn thoughts(&mut self, pieces: PartPieces) -> PartPieces {
        let mut out = String::new();
        for (part, piece) in pieces {
            match part {
                AnswerPart::ToolCall => self.tail.push_str(&piece),
                AnswerPart::Answer | AnswerPart::Thinking => {
                    out.push_str(&plain(&std::mem::take(&mut self.tail)));
                    out.push_str(&piece);
                }
            }
        }
        if out.is_empty() { PartPieces::new() } else { vec![(AnswerPart::Thinking, out)] }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use thermocline_text::tools::ToolFormat;

    const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

    /// The thoughts and the calls in `text`, which arrives letter by letter.
    fn read(text: &str, ended_within: bool) -> [String; 2] {
        let tools = [json!({ "type": "function", "function": { "name": "f" } })];
        let mut calls = ThoughtCalls::new(CallSplitter::new(ToolFormat::of_texts("<tool_call>"), &tools));
        let mut pieces: PartPieces = text.chars().flat_map(|c| calls.push(c.encode_utf8(&mut [0; 4]))).collect();
        let is_holding = calls.is_holding();
        let rest = calls.finish(ended_within);
        assert!(is_holding || rest.is_empty());
        pieces.extend(rest);
        [AnswerPart::Thinking, AnswerPart::ToolCall]
            .map(|wanted| pieces.iter().filter(|(part, _)| *part == wanted).map(|(_, text)| text.as_str()).collect())
    }

    #[test]
    fn complete_calls_at_the_end_of_an_answer_are_calls() {
        let thought = |text: &str| [text.to_owned(), String::new()];
        assert_eq!(read(&format!("Hm.\n{CALL}\n{CALL}\n"), true), ["Hm.\n".to_owned(), format!("{CALL}\n{CALL}\n")]);
        for text in [
            "Hm.".to_owned(),
            "A <tool_call> tag".to_owned(),
            format!("Perhaps {CALL}?"),
            CALL[..40].to_owned(),
            format!("{CALL}{}", &CALL[..40]),
            CALL.replace("\"f\"", "\"g\""),
        ] {
            assert_eq!(read(&text, true), thought(&text), "{text}");
        }
        // The thoughts were closed, or the answer was cut short.
        assert_eq!(read(CALL, false), thought(CALL));
        // A call that more thoughts follow does not count.
        assert_eq!(read(&format!("{CALL}, no. {CALL}"), true)[1], CALL);
    }
}
