//! Reading tool calls from an answer while its text arrives.

use serde_json::Value;
use thermocline_engine::tokenizer::{
    reasoning::AnswerPart,
    tools::{ToolEvent, ToolFormat, ToolParser},
};

use crate::store::{MessageId, ToolCall};

/// Largest number of calls in one answer. Further calls are left out.
pub const MOST_CALLS: usize = 16;

/// Reads the tool calls of one answer.
#[derive(Debug)]
pub struct CallReader {
    /// `None` for a server's answer: the server separates calls from text itself.
    parser: Option<ToolParser>,
    message: MessageId,
    calls: Vec<ToolCall>,
    /// `true` if the current call is left out.
    left_out: bool,
    /// `true` between the beginning and the end of a call.
    in_call: bool,
}

impl CallReader {
    /// A reader for the answer `message`. `format` is the form in which the model writes calls.
    pub fn new(message: MessageId, format: Option<&ToolFormat>, definitions: &[Value]) -> Self {
        let parser = format.map(|format| ToolParser::new(format.clone(), definitions));
        CallReader { parser, message, calls: Vec::new(), left_out: false, in_call: false }
    }

    /// Reads a piece of the answer and returns its text without calls.
    pub fn push(&mut self, part: AnswerPart, piece: &str) -> String {
        match &mut self.parser {
            Some(parser) if part != AnswerPart::Thinking => {
                let events = parser.push(piece);
                self.take(events)
            }
            _ => piece.to_owned(),
        }
    }

    /// Returns the text held back, at the end of the answer. A call that is not complete is
    /// dropped.
    pub fn finish(&mut self) -> String {
        let events = self.parser.as_mut().map(ToolParser::finish).unwrap_or_default();
        let words = self.take(events);
        self.drop_broken();
        words
    }

    /// Drops a call that has begun but not ended.
    fn drop_broken(&mut self) {
        if std::mem::take(&mut self.in_call) && !self.left_out {
            self.calls.pop();
        }
    }

    /// Adds a call that a server separated.
    pub fn add(&mut self, name: String, arguments: String) {
        // Nine letters, which some templates require. The message and the index make the id unique.
        let id = format!("c{:06}{:02}", self.message.number().rem_euclid(1_000_000), self.calls.len());
        self.left_out = self.calls.len() >= MOST_CALLS;
        if !self.left_out {
            self.calls.push(ToolCall { id, name, arguments });
        }
    }

    /// The calls so far.
    pub fn calls(&self) -> &[ToolCall] {
        &self.calls
    }

    fn take(&mut self, events: Vec<ToolEvent>) -> String {
        let mut words = String::new();
        for event in events {
            match event {
                ToolEvent::Text(text) => words.push_str(&text),
                ToolEvent::Begin { name } => {
                    self.drop_broken();
                    self.add(name, String::new());
                    self.in_call = true;
                }
                ToolEvent::Arguments(text) => {
                    if let Some(call) = self.calls.last_mut().filter(|_| !self.left_out) {
                        call.arguments.push_str(&text);
                    }
                }
                ToolEvent::End => self.in_call = false,
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{NewMessage, Store};

    fn message() -> MessageId {
        let (mut store, chat) = Store::with_chat();
        store.add_message(chat, None, &NewMessage::user("x")).unwrap()
    }

    #[test]
    fn calls_are_told_from_words_and_numbered() {
        let mut reader = CallReader::new(message(), Some(&ToolFormat::forced()), &[json!({})]);
        assert_eq!(reader.push(AnswerPart::Thinking, "{hm}"), "{hm}");
        let words = reader.push(AnswerPart::Answer, "[{\"name\": \"clock\", \"argu")
            + &reader.push(
                AnswerPart::Answer,
                "ments\": {}}, {\"name\": \"calculator\", \"arguments\": {\"expression\": \"1\"}}]",
            );
        assert_eq!(words + &reader.finish(), "");
        let names: Vec<_> = reader.calls().iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect();
        assert_eq!(names, [("c00000100", "clock", "{}"), ("c00000101", "calculator", "{\"expression\": \"1\"}")]);
    }

    #[test]
    fn call_that_breaks_off_is_none() {
        let mut reader = CallReader::new(message(), Some(&ToolFormat::forced()), &[json!({})]);
        reader.push(AnswerPart::Answer, "[{\"name\": \"clock\"}, {\"name\": \"calculator\", \"arguments\": {\"expr");
        assert_eq!((&*reader.finish(), reader.calls().len(), &*reader.calls()[0].arguments), ("", 1, "{}"));
    }

    #[test]
    fn an_answer_has_a_limited_number_of_calls() {
        let mut reader = CallReader::new(message(), None, &[]);
        assert_eq!(reader.push(AnswerPart::Answer, "{\"name\": \"a\"}"), "{\"name\": \"a\"}");
        for _ in 0..100 {
            reader.add("a".to_owned(), "{}".to_owned());
        }
        assert_eq!(reader.calls().len(), MOST_CALLS);

        // The arguments of a left-out call do not become part of another call.
        let mut reader = CallReader::new(message(), Some(&ToolFormat::forced()), &[json!({})]);
        let calls = vec!["{\"name\": \"clock\", \"arguments\": {}}"; MOST_CALLS + 2].join(", ");
        assert_eq!(reader.push(AnswerPart::Answer, &format!("[{calls}]")) + &reader.finish(), "");
        assert_eq!(reader.calls().len(), MOST_CALLS);
        assert!(reader.calls().iter().all(|call| call.arguments == "{}"), "{:?}", reader.calls());
    }
}
