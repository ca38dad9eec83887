//! Writes messages of content blocks, whole or as events.

use serde_json::{Value, json};
use thermocline_engine::session::{GenerationStats, StopReason};

use crate::{
    answer_events::AnswerEvent,
    answer_format::AnswerFormat,
    answer_reader::{AnswerPiece, json_arguments},
    choices::AnswerChoice,
    error::ApiError,
    stream_event::{StreamEvent, add_forgotten, new_id},
};

/// Type of blocks that call tools.
const TOOL_USE: &str = "tool_use";

/// Formatter of one message.
#[derive(Debug)]
pub struct MessageFormat {
    id: String,
    model: String,
    /// Tokens of the prompt.
    input_tokens: usize,
    /// Number of blocks begun in the stream, and the type of the open block.
    started: usize,
    open: Option<&'static str>,
}

impl MessageFormat {
    /// Creates a formatter with a new id, for an answer to a prompt of `input_tokens` tokens.
    pub fn new(model: String, input_tokens: usize) -> Self {
        MessageFormat { id: new_id("msg_"), model, input_tokens, started: 0, open: None }
    }

    /// Returns the event before the first block.
    pub fn first_events(&self) -> Vec<StreamEvent> {
        let mut message = self.frame(json!([]));
        message["usage"] = usage(self.input_tokens, &GenerationStats::default());
        vec![event("message_start", json!({ "message": message })), event("ping", json!({}))]
    }

    /// Returns the events of new pieces.
    pub fn piece_events(&mut self, pieces: &[AnswerPiece]) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for piece in pieces {
            let (kind, delta) = match piece {
                AnswerPiece::Reasoning(text) => ("thinking", json!({ "type": "thinking_delta", "thinking": text })),
                AnswerPiece::Content(text) => ("text", json!({ "type": "text_delta", "text": text })),
                AnswerPiece::Arguments { text, .. } => {
                    (TOOL_USE, json!({ "type": "input_json_delta", "partial_json": text }))
                }
                AnswerPiece::Call { id, name, .. } => {
                    let block = json!({ "type": TOOL_USE, "id": id, "name": name, "input": {} });
                    self.begin(TOOL_USE, block, &mut events);
                    continue;
                }
            };
            if kind != TOOL_USE && self.open != Some(kind) {
                self.begin(kind, text_block(kind, ""), &mut events);
            }
            let index = self.started.saturating_sub(1);
            events.push(event("content_block_delta", json!({ "index": index, "delta": delta })));
        }
        events
    }

    /// Returns the events after the last piece.
    pub fn last_events(&mut self, reason: &StopReason, called: bool, stats: &GenerationStats) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        self.end(&mut events);
        let (reason, sequence) = stop_reason(reason, called);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let usage = usage(stats.prompt_tokens, stats);
        events.push(event("message_delta", json!({ "delta": delta, "usage": usage })));
        events.push(event("message_stop", json!({})));
        events
    }

    fn begin(&mut self, kind: &'static str, block: Value, events: &mut Vec<StreamEvent>) {
        self.end(events);
        events.push(event("content_block_start", json!({ "index": self.started, "content_block": block })));
        (self.started, self.open) = (self.started + 1, Some(kind));
    }

    fn end(&mut self, events: &mut Vec<StreamEvent>) {
        if self.open.take().is_some() {
            events.push(event("content_block_stop", json!({ "index": self.started - 1 })));
        }
    }

    fn frame(&self, content: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
        })
    }
}

impl AnswerFormat for MessageFormat {
    fn events(&mut self, event: AnswerEvent) -> Vec<StreamEvent> {
        match event {
            AnswerEvent::Begin { .. } => self.first_events(),
            AnswerEvent::Pieces { pieces, .. } => self.piece_events(&pieces),
            AnswerEvent::End(end) => self.last_events(&end.reason, end.called, &end.total),
            AnswerEvent::Failed(error) => {
                vec![StreamEvent { name: Some("error"), data: error_body(&error).to_string() }]
            }
        }
    }

    fn whole(&self, choices: &[AnswerChoice], total: &GenerationStats) -> Value {
        let Some(choice) = choices.first() else { return Value::Null };
        let mut blocks: Vec<Value> = Vec::new();
        for piece in &choice.pieces {
            match piece {
                AnswerPiece::Reasoning(text) => append(&mut blocks, "thinking", text),
                AnswerPiece::Content(text) => append(&mut blocks, "text", text),
                AnswerPiece::Call { id, name, .. } => {
                    blocks.push(json!({ "type": TOOL_USE, "id": id, "name": name, "input": "" }));
                }
                AnswerPiece::Arguments { text, .. } => append(&mut blocks, TOOL_USE, text),
            }
        }
        for call in blocks.iter_mut().filter(|block| block["type"] == TOOL_USE) {
            call["input"] = json_arguments(call["input"].as_str().unwrap_or_default());
        }
        let mut message = self.frame(blocks.into());
        let (reason, sequence) = stop_reason(&choice.reason, choice.called);
        (message["stop_reason"], message["stop_sequence"]) = (reason.into(), sequence.into());
        message["usage"] = usage(total.prompt_tokens, total);
        message
    }
}

/// Appends text to the last block if its type is `kind`, else to a new block.
fn append(blocks: &mut Vec<Value>, kind: &str, text: &str) {
    let field = if kind == TOOL_USE { "input" } else { kind };
    match blocks.last_mut() {
        Some(block) if block["type"] == kind => {
            block[field] = format!("{}{text}", block[field].as_str().unwrap_or_default()).into();
        }
        _ => blocks.push(text_block(kind, text)),
    }
}

/// Builds a block of thoughts or text.
fn text_block(kind: &str, text: &str) -> Value {
    let mut block = json!({ "type": kind, kind: text });
    if kind == "thinking" {
        block["signature"] = "".into();
    }
    block
}

/// Creates an event. Its data repeats its name.
fn event(name: &'static str, mut data: Value) -> StreamEvent {
    data["type"] = name.into();
    StreamEvent { name: Some(name), data: data.to_string() }
}

/// Returns the stop reason and, if one ended the answer, the stop sequence. `called`: the answer
/// called tools.
fn stop_reason(reason: &StopReason, called: bool) -> (&'static str, Option<&str>) {
    match reason {
        StopReason::MaxTokens => ("max_tokens", None),
        StopReason::ContextFull => ("model_context_window_exceeded", None),
        _ if called => ("tool_use", None),
        StopReason::StopString(text) => ("stop_sequence", Some(text)),
        StopReason::EndOfText | StopReason::Cancelled => ("end_turn", None),
    }
}

fn usage(input: usize, stats: &GenerationStats) -> Value {
    let reused = stats.reused_tokens.min(input);
    let mut usage = json!({
        "input_tokens": input - reused,
        "cache_read_input_tokens": reused,
        "cache_creation_input_tokens": 0,
        "output_tokens": stats.generated_tokens,
    });
    add_forgotten(&mut usage, stats);
    usage
}

/// Builds the body of a refusal, or the data of the event that ends a failed stream.
pub fn error_body(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piece_events_open_and_close_a_block_for_each_kind() {
        let mut format = MessageFormat::new("m".to_owned(), 5);
        let text = |text: &str| AnswerPiece::Content(text.to_owned());
        let call = AnswerPiece::Call { index: 0, id: "a".to_owned(), name: "f".to_owned() };
        let arguments = AnswerPiece::Arguments { index: 0, text: "{}".to_owned() };
        let pieces = [AnswerPiece::Reasoning("Hm".to_owned()), text("a"), text("b"), call, arguments];
        let mut events = format.first_events();
        events.extend(format.piece_events(&pieces));
        events.extend(format.last_events(&StopReason::EndOfText, true, &GenerationStats::default()));
        let names: Vec<_> = events.iter().filter_map(|event| event.name).collect();
        let wanted = [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ];
        assert_eq!(names, wanted);
        let data = |at: usize| serde_json::from_str::<Value>(&events[at].data).unwrap();
        assert_eq!(data(0)["message"]["usage"]["input_tokens"], 5);
        assert_eq!((&data(9)["index"], &data(9)["content_block"]["name"]), (&json!(2), &json!("f")));
        assert_eq!(data(10)["delta"], json!({ "type": "input_json_delta", "partial_json": "{}" }));
        assert_eq!(data(12)["delta"]["stop_reason"], "tool_use");
    }

    #[test]
    fn usage_names_forgotten_turns_where_there_are_any() {
        let stats = GenerationStats { forgotten_tokens: 7, forgotten_turns: 1, ..GenerationStats::default() };
        let told = usage(5, &stats);
        assert_eq!((&told["forgotten_tokens"], &told["forgotten_turns"]), (&json!(7), &json!(1)));
        assert!(usage(5, &GenerationStats::default()).get("forgotten_tokens").is_none());
    }

    #[test]
    fn stop_reasons_name_the_sequence() {
        let stop = StopReason::StopString("x".to_owned());
        assert_eq!(stop_reason(&stop, false), ("stop_sequence", Some("x")));
        assert_eq!(stop_reason(&stop, true), ("tool_use", None));
        assert_eq!(stop_reason(&StopReason::MaxTokens, true), ("max_tokens", None));
    }
}
