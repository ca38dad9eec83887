//! The items of an answer: reasoning, messages and calls of functions, while they arrive.

use serde_json::{Value, json};
use thermocline_engine::session::Role;

use super::tools::{NamespacedName, Namespaces};
use crate::{answer_reader::AnswerPiece, request_message::RequestMessage, stream_event::new_id};

/// An event of a stream without its number: type and fields.
pub type ItemEvent = (&'static str, Value);

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Reasoning,
    Message,
    Call,
}

/// The items so far.
#[derive(Debug, Default)]
pub struct ResponseItems {
    output: Vec<Value>,
    /// The kind of the last one, if it is not complete.
    open: Option<ItemKind>,
    /// Functions of namespaces.
    namespaces: Namespaces,
}

impl ResponseItems {
    /// No items yet, of a request with these namespaces.
    pub fn new(namespaces: Namespaces) -> Self {
        ResponseItems { namespaces, ..ResponseItems::default() }
    }

    /// The items.
    pub fn output(&self) -> &[Value] {
        &self.output
    }

    /// True if the last item is a call that is not complete.
    pub fn in_call(&self) -> bool {
        self.open == Some(ItemKind::Call)
    }

    /// Adds a piece, and tells `events` of it.
    pub fn push(&mut self, piece: &AnswerPiece, events: &mut Vec<ItemEvent>) {
        match piece {
            AnswerPiece::Reasoning(text) => {
                self.begin_text(ItemKind::Reasoning, events);
                self.add_text("response.reasoning_text.delta", text, events);
            }
            AnswerPiece::Content(text) => {
                self.begin_text(ItemKind::Message, events);
                self.add_text("response.output_text.delta", text, events);
            }
            AnswerPiece::Call { id, name, .. } => {
                let mut item = json!({
                    "id": new_id("fc_"), "type": "function_call", "status": "in_progress", "call_id": id, "name": name,
                    "arguments": "",
                });
                if let Some(NamespacedName { namespace, name }) = self.namespaces.get(name) {
                    (item["name"], item["namespace"]) = (name.clone().into(), namespace.clone().into());
                }
                self.begin(ItemKind::Call, item, events);
            }
            AnswerPiece::Arguments { text, .. } => {
                let at = self.output.len().saturating_sub(1);
                let Some(item) = self.output.last_mut() else { return };
                append(&mut item["arguments"], text);
                let event = json!({ "item_id": item["id"], "output_index": at, "delta": text });
                events.push(("response.function_call_arguments.delta", event));
            }
        }
    }

    /// Completes the last item; `status` is the one it has then: `completed` or `incomplete`.
    pub fn finish(&mut self, status: &str, events: &mut Vec<ItemEvent>) {
        let Some(kind) = self.open.take() else { return };
        let at = self.output.len().saturating_sub(1);
        let Some(item) = self.output.last_mut() else { return };
        item["status"] = status.into();
        let place = |mut event: Value| {
            (event["item_id"], event["output_index"]) = (item["id"].clone(), at.into());
            event
        };
        let part = item["content"][0].clone();
        match kind {
            ItemKind::Call => {
                let event = json!({ "name": item["name"], "arguments": item["arguments"] });
                events.push(("response.function_call_arguments.done", place(event)));
            }
            ItemKind::Reasoning => {
                let event = json!({ "content_index": 0, "text": part["text"] });
                events.push(("response.reasoning_text.done", place(event)));
            }
            ItemKind::Message => {
                let event = json!({ "content_index": 0, "text": part["text"], "logprobs": [] });
                events.push(("response.output_text.done", place(event)));
            }
        }
        if kind != ItemKind::Call {
            events.push(("response.content_part.done", place(json!({ "content_index": 0, "part": part }))));
        }
        events.push(("response.output_item.done", json!({ "output_index": at, "item": item })));
    }

    /// The assistant's message of a chat that says the same.
    pub fn chat_message(&self) -> RequestMessage {
        let mut message = RequestMessage::new(Role::Assistant, "");
        for item in &self.output {
            let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
            let content = item["content"][0]["text"].as_str().unwrap_or_default();
            match item["type"].as_str() {
                Some("reasoning") => content.clone_into(&mut message.thoughts),
                Some("message") => message.content.push_str(content),
                _ => {
                    let name = match item["namespace"].as_str() {
                        Some(namespace) => {
                            NamespacedName { namespace: namespace.to_owned(), name: text("name") }.full()
                        }
                        None => text("name"),
                    };
                    message.calls.push(RequestMessage::call(Some(&text("call_id")), &name, &text("arguments")));
                }
            }
        }
        message
    }

    fn begin_text(&mut self, kind: ItemKind, events: &mut Vec<ItemEvent>) {
        if self.open == Some(kind) {
            return;
        }
        let (item, mut part) = match kind {
            ItemKind::Reasoning => (
                json!({ "id": new_id("rs_"), "type": "reasoning", "status": "in_progress", "summary": [], "content": [] }),
                json!({ "type": "reasoning_text", "text": "" }),
            ),
            _ => (
                json!({ "id": new_id("msg_"), "type": "message", "status": "in_progress", "role": "assistant", "content": [] }),
                json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] }),
            ),
        };
        self.begin(kind, item, events);
        let at = self.output.len().saturating_sub(1);
        if let Some(item) = self.output.last_mut() {
            let event = json!({ "item_id": item["id"], "output_index": at, "content_index": 0, "part": part });
            events.push(("response.content_part.added", event));
            item["content"] = json!([part.take()]);
        }
    }

    fn add_text(&mut self, event: &'static str, text: &str, events: &mut Vec<ItemEvent>) {
        let at = self.output.len().saturating_sub(1);
        let Some(item) = self.output.last_mut() else { return };
        append(&mut item["content"][0]["text"], text);
        let mut delta = json!({ "item_id": item["id"], "output_index": at, "content_index": 0, "delta": text });
        if item["type"] == "message" {
            delta["logprobs"] = json!([]);
        }
        events.push((event, delta));
    }

    fn begin(&mut self, kind: ItemKind, item: Value, events: &mut Vec<ItemEvent>) {
        self.finish("completed", events);
        events.push(("response.output_item.added", json!({ "output_index": self.output.len(), "item": item })));
        self.output.push(item);
        self.open = Some(kind);
    }
}

/// Appends to a string.
fn append(value: &mut Value, text: &str) {
    if let Value::String(all) = value {
        all.push_str(text);
    }
}
