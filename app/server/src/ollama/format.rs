//! Writes answers as lines of JSON, or as one object.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use thermocline_engine::session::{GenerationStats, StopReason};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    answer_events::AnswerEvent,
    answer_format::AnswerFormat,
    answer_reader::{AnswerPiece, complete_calls, json_arguments},
    choices::AnswerChoice,
    error::ApiError,
    stream_event::{StreamEvent, add_forgotten},
};

/// Formatter of one answer.
#[derive(Debug)]
pub struct LinesFormat {
    model: String,
    /// True for an answer to `/api/chat`, false for `/api/generate`.
    chat: bool,
    started: Instant,
    /// Name and JSON arguments of the tool call that is arriving.
    call: Option<(String, String)>,
}

impl LinesFormat {
    /// Creates a formatter of an answer that begins now.
    pub fn new(model: String, chat: bool) -> Self {
        LinesFormat { model, chat, started: Instant::now(), call: None }
    }

    /// Returns the lines of new pieces. A tool call gets its line when it is complete.
    pub fn piece_events(&mut self, pieces: &[AnswerPiece]) -> Vec<StreamEvent> {
        let mut lines = Vec::new();
        for piece in pieces {
            match (piece, &mut self.call) {
                (AnswerPiece::Arguments { text, .. }, Some((_, arguments))) => arguments.push_str(text),
                (AnswerPiece::Arguments { .. }, None) => {}
                (AnswerPiece::Call { name, .. }, _) => {
                    lines.extend(self.take_call());
                    self.call = Some((name.clone(), String::new()));
                }
                (AnswerPiece::Content(text), _) => {
                    lines.extend(self.take_call());
                    lines.push(self.object(text, "", Vec::new()));
                }
                (AnswerPiece::Reasoning(text), _) => {
                    lines.extend(self.take_call());
                    lines.push(self.object("", text, Vec::new()));
                }
            }
        }
        lines.iter().map(line).collect()
    }

    /// Returns the lines after the last piece.
    pub fn last_events(&mut self, reason: &StopReason, total: &GenerationStats) -> Vec<StreamEvent> {
        let call = self.take_call();
        let end = self.with_end(self.object("", "", Vec::new()), reason, total);
        call.iter().chain([&end]).map(line).collect()
    }

    fn take_call(&mut self) -> Option<Value> {
        let (name, arguments) = self.call.take()?;
        Some(self.object("", "", vec![call_json(&name, &arguments)]))
    }

    fn object(&self, content: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let mut object = json!({ "model": self.model, "created_at": now(), "done": false });
        if self.chat {
            let mut message = json!({ "role": "assistant", "content": content });
            if !thinking.is_empty() {
                message["thinking"] = thinking.into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            object["message"] = message;
        } else {
            object["response"] = content.into();
            if !thinking.is_empty() {
                object["thinking"] = thinking.into();
            }
        }
        object
    }

    fn with_end(&self, mut object: Value, reason: &StopReason, total: &GenerationStats) -> Value {
        object["done"] = true.into();
        object["done_reason"] = match reason {
            StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled => "stop".into(),
            StopReason::MaxTokens | StopReason::ContextFull => "length".into(),
        };
        for (field, time) in [
            ("total_duration", self.started.elapsed()),
            ("load_duration", Duration::ZERO),
            ("prompt_eval_duration", total.prompt_time),
            ("eval_duration", total.decode_time),
        ] {
            object[field] = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into();
        }
        object["prompt_eval_count"] = total.prompt_tokens.into();
        object["eval_count"] = total.generated_tokens.into();
        add_forgotten(&mut object, total);
        object
    }
}

impl AnswerFormat for LinesFormat {
    fn is_lines(&self) -> bool {
        true
    }

    fn events(&mut self, event: AnswerEvent) -> Vec<StreamEvent> {
        match event {
            AnswerEvent::Begin { .. } => Vec::new(),
            AnswerEvent::Pieces { pieces, .. } => self.piece_events(&pieces),
            AnswerEvent::End(end) => self.last_events(&end.reason, &end.total),
            AnswerEvent::Failed(error) => vec![line(&error_body(&error))],
        }
    }

    fn whole(&self, choices: &[AnswerChoice], total: &GenerationStats) -> Value {
        let Some(choice) = choices.first() else { return Value::Null };
        let text = |part: fn(&AnswerPiece) -> Option<&str>| choice.pieces.iter().filter_map(part).collect::<String>();
        let calls = complete_calls(&choice.pieces);
        let calls = calls.iter().map(|call| call_json(&call.name, &call.arguments)).collect();
        let object = self.object(&text(AnswerPiece::content), &text(AnswerPiece::reasoning), calls);
        self.with_end(object, &choice.reason, total)
    }
}

fn call_json(name: &str, arguments: &str) -> Value {
    json!({ "function": { "name": name, "arguments": json_arguments(arguments) } })
}

fn line(object: &Value) -> StreamEvent {
    StreamEvent { name: None, data: object.to_string() }
}

/// Builds the answer to a request that only loads the model. The model is loaded by then.
pub fn loaded(model: &str, chat: bool) -> Value {
    let format = LinesFormat::new(model.to_owned(), chat);
    let mut object = format.object("", "", Vec::new());
    (object["done"], object["done_reason"]) = (true.into(), "load".into());
    object
}

/// Builds the body of a refusal, or the line that ends a failed stream.
pub fn error_body(error: &ApiError) -> Value {
    json!({ "error": error.message })
}

/// Formats the current time.
fn now() -> String {
    rfc3339(SystemTime::now())
}

/// Formats a time as RFC 3339, which this protocol uses.
pub(super) fn rfc3339(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_names_forgotten_turns() {
        let format = LinesFormat::new("m".to_owned(), true);
        let stats = GenerationStats { forgotten_tokens: 7, forgotten_turns: 1, ..GenerationStats::default() };
        let last = format.with_end(json!({}), &StopReason::EndOfText, &stats);
        assert_eq!((&last["forgotten_tokens"], &last["forgotten_turns"]), (&json!(7), &json!(1)));
    }

    #[test]
    fn calls_are_told_when_they_are_complete() {
        let mut format = LinesFormat::new("m".to_owned(), true);
        let call = |name: &str| AnswerPiece::Call { index: 0, id: "a".to_owned(), name: name.to_owned() };
        let arguments = |text: &str| AnswerPiece::Arguments { index: 0, text: text.to_owned() };
        let read = |events: Vec<StreamEvent>| -> Vec<Value> {
            events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect()
        };
        let begun = read(format.piece_events(&[AnswerPiece::Content("Hm".to_owned()), call("f"), arguments("{\"x\"")]));
        assert_eq!((begun.len(), &begun[0]["message"]["content"]), (1, &json!("Hm")));
        let next = read(format.piece_events(&[arguments(": 1}"), call("g")]));
        let function = json!({ "function": { "name": "f", "arguments": { "x": 1 } } });
        assert_eq!((next.len(), &next[0]["message"]["tool_calls"]), (1, &json!([function])));
        let last = read(format.last_events(&StopReason::MaxTokens, &GenerationStats::default()));
        assert_eq!(last[0]["message"]["tool_calls"][0]["function"]["name"], "g");
        assert_eq!((&last[1]["done"], &last[1]["done_reason"]), (&json!(true), &json!("length")));
    }
}
