//! An answer as one text in the same form for every model: thoughts between `<think>` and
//! `</think>`, followed by the answer.

use super::AnswerPart;

/// Starts the thoughts.
pub const OPEN: &str = "<think>";
/// Ends the thoughts.
pub const CLOSE: &str = "</think>";

/// The parts of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thoughts<'a> {
    /// The thoughts, if the transcript starts with thoughts.
    pub thinking: Option<&'a str>,
    /// False while the thoughts are not closed.
    pub closed: bool,
    /// The text after the thoughts.
    pub answer: &'a str,
}

impl<'a> Thoughts<'a> {
    /// Splits `text` into its parts.
    pub fn of(text: &'a str) -> Self {
        let Some(rest) = text.trim_start().strip_prefix(OPEN) else {
            return Thoughts { thinking: None, closed: true, answer: text };
        };
        match rest.split_once(CLOSE) {
            Some((thinking, answer)) => Thoughts { thinking: Some(thinking), closed: true, answer },
            None => Thoughts { thinking: Some(rest), closed: false, answer: "" },
        }
    }
}

/// Writes a transcript piece by piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TranscriptWriter {
    thinking: bool,
    ends_line: bool,
}

impl TranscriptWriter {
    /// A writer that continues after `text`.
    pub fn after(text: &str) -> Self {
        TranscriptWriter { thinking: !Thoughts::of(text).closed, ends_line: text.ends_with('\n') }
    }

    /// Returns the text to append for a piece of `part`.
    pub fn push(&mut self, part: AnswerPart, piece: &str) -> String {
        let mut text = String::new();
        if piece.is_empty() {
            return text;
        }
        match (part, self.thinking) {
            (AnswerPart::Thinking, false) => {
                text.push_str(OPEN);
                if !piece.starts_with('\n') {
                    text.push('\n');
                }
                self.thinking = true;
            }
            (AnswerPart::Thinking, true) => {}
            (AnswerPart::Answer | AnswerPart::ToolCall, true) => {
                text.push_str(&self.close());
                if !piece.starts_with('\n') {
                    text.push_str("\n\n");
                }
            }
            (AnswerPart::Answer | AnswerPart::ToolCall, false) => {}
        }
        text.push_str(piece);
        self.ends_line = piece.ends_with('\n');
        text
    }

    fn close(&mut self) -> String {
        self.thinking = false;
        format!("{}{CLOSE}", if self.ends_line { "" } else { "\n" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pieces: &[(AnswerPart, &str)]) -> String {
        let mut writer = TranscriptWriter::default();
        pieces.iter().map(|&(part, piece)| writer.push(part, piece)).collect()
    }

    #[test]
    fn transcripts_are_the_same_for_all_models() {
        use AnswerPart::{Answer, Thinking};
        let want = "<think>\nHm.\n</think>\n\nYes.";
        assert_eq!(written(&[(Thinking, "\nH"), (Thinking, "m.\n"), (Answer, "\n\nYes.")]), want);
        assert_eq!(written(&[(Thinking, "Hm."), (Answer, ""), (Answer, "Y"), (Answer, "es.")]), want);
        assert_eq!(written(&[(Answer, "Yes.")]), "Yes.");
        let Thoughts { thinking, closed, answer } = Thoughts::of(want);
        assert_eq!((thinking, closed, answer), (Some("\nHm.\n"), true, "\n\nYes."));
        let mut more = TranscriptWriter::after("<think>\nHm");
        assert_eq!(more.push(Thinking, ".") + &more.push(Answer, "Yes."), ".\n</think>\n\nYes.");
        assert_eq!(Thoughts::of("no <think>"), Thoughts { thinking: None, closed: true, answer: "no <think>" });
    }
}
