//! The items of an answer as they arrive: reasoning, messages and function calls.

use serde_json::{Value, json};
use thermocline_engine::session::Role;

use super::tools::{NamespacedName, Namespaces, full_name};
use crate::{answer_reader::AnswerPiece, request_message::RequestMessage, stream_event::new_id};

/// A stream event without its sequence number: type and fields.
pub type ItemEvent = (&'static str, Value);

/// Types of items.
const REASONING: &str = "reasoning";
const MESSAGE: &str = "message";
const CALL: &str = "function_call";

/// The items so far.
#[derive(Debug, Default)]
pub struct ResponseItems {
    output: Vec<Value>,
    /// Type of the last item, if it is not complete.
    open: Option<&'static str>,
    /// Functions in namespaces.
    namespaces: Namespaces,
}

impl ResponseItems {
    /// Starts without items, for a request with these namespaces.
    pub fn new(namespaces: Namespaces) -> Self {
        ResponseItems { namespaces, ..ResponseItems::default() }
    }

    /// The items.
    pub fn output(&self) -> &[Value] {
        &self.output
    }

    /// True if the last item is an incomplete call.
    pub fn in_call(&self) -> bool {
        self.open == Some(CALL)
    }

    /// Adds a piece, and its events to `events`.
    pub fn push(&mut self, piece: &AnswerPiece, events: &mut Vec<ItemEvent>) {
        match piece {
            AnswerPiece::Reasoning(text) => self.add_text(REASONING, text, events),
            AnswerPiece::Content(text) => self.add_text(MESSAGE, text, events),
            AnswerPiece::Call { id, name, .. } => {
                let mut item = json!({
                    "id": new_id("fc_"), "type": CALL, "status": "in_progress", "call_id": id, "name": name,
                    "arguments": "",
                });
                if let Some(NamespacedName { namespace, name }) = self.namespaces.get(name) {
                    (item["name"], item["namespace"]) = (name.clone().into(), namespace.clone().into());
                }
                self.begin(CALL, item, events);
            }
            AnswerPiece::Arguments { text, .. } => {
                let Some(item) = self.output.last_mut() else { return };
                append(&mut item["arguments"], text);
                events.push(("response.function_call_arguments.delta", self.placed(json!({ "delta": text }))));
            }
        }
    }

    /// Adds the last item's identifier and index to an event.
    fn placed(&self, mut event: Value) -> Value {
        let last = self.output.len().saturating_sub(1);
        (event["item_id"], event["output_index"]) = (self.output[last]["id"].clone(), last.into());
        event
    }

    /// Completes the last item with `status`: `completed` or `incomplete`.
    pub fn finish(&mut self, status: &str, events: &mut Vec<ItemEvent>) {
        let Some(kind) = self.open.take() else { return };
        let Some(item) = self.output.last_mut() else { return };
        item["status"] = status.into();
        let item = item.clone();
        let part = &item["content"][0];
        let (name, done) = match kind {
            CALL => {
                let event = json!({ "name": item["name"], "arguments": item["arguments"] });
                ("response.function_call_arguments.done", event)
            }
            REASONING => ("response.reasoning_text.done", json!({ "content_index": 0, "text": part["text"] })),
            _ => ("response.output_text.done", json!({ "content_index": 0, "text": part["text"], "logprobs": [] })),
        };
        events.push((name, self.placed(done)));
        if kind != CALL {
            let event = self.placed(json!({ "content_index": 0, "part": part }));
            events.push(("response.content_part.done", event));
        }
        let at = self.output.len() - 1;
        events.push(("response.output_item.done", json!({ "output_index": at, "item": item })));
    }

    /// Converts the items to the assistant's chat message.
    pub fn chat_message(&self) -> RequestMessage {
        let mut message = RequestMessage::new(Role::Assistant, "");
        for item in &self.output {
            let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
            let content = item["content"][0]["text"].as_str().unwrap_or_default();
            match item["type"].as_str() {
                Some("reasoning") => content.clone_into(&mut message.thoughts),
                Some("message") => message.content.push_str(content),
                _ => {
                    let name = full_name(item["namespace"].as_str(), &text("name"));
                    message.calls.push(RequestMessage::call(Some(&text("call_id")), &name, &text("arguments")));
                }
            }
        }
        message
    }

    fn add_text(&mut self, kind: &'static str, text: &str, events: &mut Vec<ItemEvent>) {
        if self.open != Some(kind) {
            self.begin_text(kind, events);
        }
        let Some(item) = self.output.last_mut() else { return };
        append(&mut item["content"][0]["text"], text);
        let mut delta = self.placed(json!({ "content_index": 0, "delta": text }));
        if kind == REASONING {
            return events.push(("response.reasoning_text.delta", delta));
        }
        delta["logprobs"] = json!([]);
        events.push(("response.output_text.delta", delta));
    }

    fn begin_text(&mut self, kind: &'static str, events: &mut Vec<ItemEvent>) {
        let (item, part) = match kind {
            REASONING => (
                json!({ "id": new_id("rs_"), "type": kind, "status": "in_progress", "summary": [], "content": [] }),
                json!({ "type": "reasoning_text", "text": "" }),
            ),
            _ => (
                json!({ "id": new_id("msg_"), "type": kind, "status": "in_progress", "role": "assistant", "content": [] }),
                json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] }),
            ),
        };
        self.begin(kind, item, events);
        events.push(("response.content_part.added", self.placed(json!({ "content_index": 0, "part": part }))));
        if let Some(item) = self.output.last_mut() {
            item["content"] = json!([part]);
        }
    }

    fn begin(&mut self, kind: &'static str, item: Value, events: &mut Vec<ItemEvent>) {
        self.finish("completed", events);
        events.push(("response.output_item.added", json!({ "output_index": self.output.len(), "item": item })));
        self.output.push(item);
        self.open = Some(kind);
    }
}

/// Appends to a JSON string.
fn append(value: &mut Value, text: &str) {
    if let Value::String(all) = value {
        all.push_str(text);
    }
}
