//! Writes responses of items, whole or as events.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use thermocline_engine::session::{GenerationStats, StopReason};

use super::{
    items::{ItemEvent, ResponseItems},
    request::ResponseBody,
    store::{ResponseStore, StoredResponse},
};
use crate::{
    answer_events::AnswerEvent,
    answer_format::AnswerFormat,
    answer_reader::AnswerPiece,
    choices::AnswerChoice,
    stream_event::{StreamEvent, add_forgotten, new_id},
};

/// Formatter of one response.
#[derive(Debug)]
pub struct ResponseFormat {
    id: String,
    created: u64,
    model: String,
    body: ResponseBody,
    /// Store that keeps the response.
    store: Arc<ResponseStore>,
    items: ResponseItems,
    /// Number of the next event.
    sequence: usize,
}

impl ResponseFormat {
    /// Creates a formatter with a new id.
    pub fn new(model: String, body: ResponseBody, store: Arc<ResponseStore>) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let items = ResponseItems::new(body.namespaces.clone());
        ResponseFormat { id: new_id("resp_"), created, model, body, store, items, sequence: 0 }
    }

    /// Returns the events before the first item.
    pub fn first_events(&mut self) -> Vec<StreamEvent> {
        let frame = self.frame("in_progress", &[]);
        self.numbered(vec![
            ("response.created", json!({ "response": frame })),
            ("response.in_progress", json!({ "response": frame })),
        ])
    }

    /// Returns the events of new pieces.
    pub fn piece_events(&mut self, pieces: &[AnswerPiece]) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        pieces.iter().for_each(|piece| self.items.push(piece, &mut events));
        self.numbered(events)
    }

    /// Returns the events after the last piece. `called`: the response called tools, and the last
    /// call is complete.
    pub fn last_events(&mut self, reason: &StopReason, called: bool, total: &GenerationStats) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        self.items.finish(item_status(&self.items, reason, called), &mut events);
        let name = if status(reason) == "completed" { "response.completed" } else { "response.incomplete" };
        events.push((name, json!({ "response": self.end(&self.items, reason, total) })));
        self.numbered(events)
    }

    fn numbered(&mut self, events: Vec<ItemEvent>) -> Vec<StreamEvent> {
        let number = |(name, mut data): ItemEvent| {
            (data["type"], data["sequence_number"]) = (name.into(), self.sequence.into());
            self.sequence += 1;
            StreamEvent { name: Some(name), data: data.to_string() }
        };
        events.into_iter().map(number).collect()
    }

    /// Builds the complete response, and stores it if the request asks for that.
    fn end(&self, items: &ResponseItems, reason: &StopReason, total: &GenerationStats) -> Value {
        let mut response = self.frame(status(reason), items.output());
        if status(reason) == "incomplete" {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response["usage"] = json!({
            "input_tokens": total.prompt_tokens,
            "input_tokens_details": { "cached_tokens": total.reused_tokens },
            "output_tokens": total.generated_tokens,
            "output_tokens_details": { "reasoning_tokens": total.thought_tokens },
            "total_tokens": total.prompt_tokens + total.generated_tokens,
        });
        add_forgotten(&mut response["usage"]["input_tokens_details"], total);
        if self.body.store {
            let mut messages = self.body.messages.clone();
            messages.push(items.chat_message());
            self.store.insert(StoredResponse { id: self.id.clone(), messages, response: response.clone() });
        }
        response
    }

    fn frame(&self, status: &str, output: &[Value]) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": output,
            "usage": null,
        });
        if let Some(response) = response.as_object_mut() {
            response.extend(self.body.echoed.clone());
        }
        response
    }
}

impl AnswerFormat for ResponseFormat {
    fn events(&mut self, event: AnswerEvent) -> Vec<StreamEvent> {
        match event {
            AnswerEvent::Begin { .. } => self.first_events(),
            AnswerEvent::Pieces { pieces, .. } => self.piece_events(&pieces),
            AnswerEvent::End(end) => self.last_events(&end.reason, end.called, &end.total),
            AnswerEvent::Failed(error) => {
                let mut data = error.json()["error"].take();
                (data["type"], data["sequence_number"]) = ("error".into(), self.sequence.into());
                vec![StreamEvent { name: Some("error"), data: data.to_string() }]
            }
        }
    }

    fn whole(&self, choices: &[AnswerChoice], total: &GenerationStats) -> Value {
        let Some(choice) = choices.first() else { return Value::Null };
        let (mut items, mut events) = (ResponseItems::new(self.body.namespaces.clone()), Vec::new());
        choice.pieces.iter().for_each(|piece| items.push(piece, &mut events));
        items.finish(item_status(&items, &choice.reason, choice.called), &mut events);
        self.end(&items, &choice.reason, total)
    }
}

/// Status of the last item of a response that ended for `reason`. A call that breaks off is
/// incomplete.
fn item_status(items: &ResponseItems, reason: &StopReason, called: bool) -> &'static str {
    if items.in_call() && !called { "incomplete" } else { status(reason) }
}

/// Status of a response that ended for `reason`.
fn status(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled => "completed",
        StopReason::MaxTokens | StopReason::ContextFull => "incomplete",
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{Prompt, Request, Role};

    use super::*;
    use crate::{
        openai::responses::read_response_request,
        request_message::{ReadRules, RequestMessage},
    };

    fn format_of(store: &Arc<ResponseStore>, body: &str) -> ResponseFormat {
        let defaults = Request::new(Prompt::Tokens(Vec::new()));
        let request = read_response_request(body.as_bytes(), store, &defaults, &ReadRules::default()).unwrap();
        ResponseFormat::new("m".to_owned(), request.body, Arc::clone(store))
    }

    fn format(store: &Arc<ResponseStore>) -> ResponseFormat {
        format_of(store, r#"{ "input": "hi", "instructions": "Be brief." }"#)
    }

    fn pieces() -> Vec<AnswerPiece> {
        vec![
            AnswerPiece::Reasoning("Hm".to_owned()),
            AnswerPiece::Reasoning(".".to_owned()),
            AnswerPiece::Content("Let me see.".to_owned()),
            AnswerPiece::Call { index: 0, id: "a".to_owned(), name: "f".to_owned() },
            AnswerPiece::Arguments { index: 0, text: "{\"x\"".to_owned() },
            AnswerPiece::Arguments { index: 0, text: ": 1}".to_owned() },
        ]
    }

    #[test]
    fn events_have_the_documented_order_and_add_up_to_the_response() {
        let store = Arc::default();
        let mut format = format(&store);
        let mut events = format.first_events();
        pieces().iter().for_each(|piece| events.extend(format.piece_events(std::slice::from_ref(piece))));
        let stats = GenerationStats { prompt_tokens: 3, generated_tokens: 9, thought_tokens: 2, ..Default::default() };
        events.extend(format.last_events(&StopReason::EndOfText, true, &stats));
        let names: Vec<&str> = events.iter().filter_map(|event| event.name).collect();
        let wanted = [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ];
        assert_eq!(names, wanted);
        let data: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect();
        assert!(data.iter().enumerate().all(|(at, data)| data["sequence_number"] == at && data["type"] == names[at]));
        let response = &data[20]["response"];
        let items: Vec<&Value> =
            data.iter().filter(|it| it["type"] == "response.output_item.done").map(|it| &it["item"]).collect();
        assert_eq!(response["output"].as_array().unwrap().iter().collect::<Vec<_>>(), items);
        assert_eq!((&items[0]["content"][0]["text"], &items[2]["arguments"]), (&json!("Hm."), &json!("{\"x\": 1}")));
        assert_eq!((&response["status"], &response["instructions"]), (&json!("completed"), &json!("Be brief.")));
        assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 2);

        let kept = store.get(response["id"].as_str().unwrap()).unwrap();
        assert_eq!(&kept.response, response);
        let answer = RequestMessage {
            thoughts: "Hm.".to_owned(),
            calls: vec![RequestMessage::call(Some("a"), "f", "{\"x\": 1}")],
            ..RequestMessage::new(Role::Assistant, "Let me see.")
        };
        assert_eq!(kept.messages, [RequestMessage::new(Role::User, "hi"), answer]);
    }

    #[test]
    fn calls_of_a_namespace_name_it() {
        let store = Arc::default();
        let tools = json!([{ "type": "namespace", "name": "crm", "tools": [{ "type": "function", "name": "f" }] }]);
        let body = json!({ "input": "hi", "tools": tools }).to_string();
        let mut format = format_of(&store, &body);
        format.first_events();
        format.piece_events(&[AnswerPiece::Call { index: 0, id: "a".to_owned(), name: "crm__f".to_owned() }]);
        let events = format.last_events(&StopReason::EndOfText, true, &GenerationStats::default());
        let data: Value = serde_json::from_str(&events.last().unwrap().data).unwrap();
        let item = &data["response"]["output"][0];
        assert_eq!((&item["name"], &item["namespace"]), (&json!("f"), &json!("crm")));
        let kept = store.get(data["response"]["id"].as_str().unwrap()).unwrap();
        assert_eq!(kept.messages[1].calls[0]["function"]["name"], "crm__f");
    }

    #[test]
    fn response_at_a_limit_is_incomplete() {
        let store = Arc::default();
        let mut format = format(&store);
        format.first_events();
        format.piece_events(&[AnswerPiece::Content("Once".to_owned())]);
        let events = format.last_events(&StopReason::MaxTokens, false, &GenerationStats::default());
        let last = events.last().unwrap();
        let response = serde_json::from_str::<Value>(&last.data).unwrap()["response"].take();
        assert_eq!((last.name, &response["status"]), (Some("response.incomplete"), &json!("incomplete")));
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(response["output"][0]["status"], "incomplete");
    }
}
