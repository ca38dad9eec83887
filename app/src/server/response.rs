//! The JSON of answers, whole and in chunks.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use thermocline_engine::session::{GenerationStats, StopReason};

use super::{answer_reader::AnswerPiece, request::Endpoint};

/// Formatter of one answer: its id, time and model are the same in every chunk.
#[derive(Debug)]
pub struct CompletionFormat {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
}

impl CompletionFormat {
    /// A formatter with a new id.
    pub fn new(endpoint: Endpoint, model: String) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        let id = format!("{prefix}-{:x}{:04x}", now.as_nanos(), COUNT.fetch_add(1, Relaxed) & 0xffff);
        CompletionFormat { endpoint, id, created: now.as_secs(), model }
    }

    /// The complete answer.
    pub fn whole(&self, pieces: &[AnswerPiece], reason: &StopReason, stats: &GenerationStats) -> Value {
        let content: String = pieces.iter().filter_map(AnswerPiece::content).collect();
        let calls = whole_calls(pieces);
        let finish = finish_reason(reason, !calls.is_empty());
        let (object, content) = match self.endpoint {
            Endpoint::Chat => {
                let reasoning: String = pieces.iter().filter_map(AnswerPiece::reasoning).collect();
                let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.into() };
                let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into();
                }
                ("chat.completion", ("message", message))
            }
            Endpoint::Completion => ("text_completion", ("text", content.into())),
        };
        let mut whole = self.frame(object, content, Some(finish));
        whole["usage"] = usage(stats);
        whole
    }

    /// The chunk before the first text: a chat's role.
    pub fn first_chunk(&self) -> Option<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        (self.endpoint == Endpoint::Chat).then(|| self.frame("chat.completion.chunk", ("delta", role), None))
    }

    /// The chunk of a piece.
    pub fn piece_chunk(&self, piece: &AnswerPiece) -> Value {
        if self.endpoint == Endpoint::Completion {
            let text = piece.content().or(piece.reasoning()).unwrap_or_default();
            return self.frame("text_completion", ("text", text.into()), None);
        }
        let delta = match piece {
            AnswerPiece::Reasoning(text) => json!({ "reasoning_content": text }),
            AnswerPiece::Content(text) => json!({ "content": text }),
            AnswerPiece::Call { index, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
            }
            AnswerPiece::Arguments { index, text } => {
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
            }
        };
        self.frame("chat.completion.chunk", ("delta", delta), None)
    }

    /// The chunk that says why the answer has ended; `called`: with calls of tools.
    pub fn final_chunk(&self, reason: &StopReason, called: bool) -> Value {
        let finish = Some(finish_reason(reason, called));
        match self.endpoint {
            Endpoint::Chat => self.frame("chat.completion.chunk", ("delta", json!({})), finish),
            Endpoint::Completion => self.frame("text_completion", ("text", "".into()), finish),
        }
    }

    /// The chunk of token counts.
    pub fn usage_chunk(&self, stats: &GenerationStats) -> Value {
        let mut chunk = self.final_chunk(&StopReason::EndOfText, false);
        chunk["choices"] = json!([]);
        chunk["usage"] = usage(stats);
        chunk
    }

    fn frame(&self, object: &str, (name, content): (&str, Value), finish: Option<&str>) -> Value {
        let choice = json!({ "index": 0, name: content, "logprobs": null, "finish_reason": finish });
        let CompletionFormat { id, created, model, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": [choice] })
    }
}

fn finish_reason(reason: &StopReason, called: bool) -> &'static str {
    match reason {
        StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled if called => "tool_calls",
        StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled => "stop",
        StopReason::MaxTokens | StopReason::ContextFull => "length",
    }
}

/// The calls of a complete answer.
fn whole_calls(pieces: &[AnswerPiece]) -> Vec<Value> {
    let mut calls: Vec<(&str, &str, String)> = Vec::new();
    for piece in pieces {
        match (piece, calls.last_mut()) {
            (AnswerPiece::Call { id, name, .. }, _) => calls.push((id, name, String::new())),
            (AnswerPiece::Arguments { text, .. }, Some((_, _, arguments))) => arguments.push_str(text),
            _ => {}
        }
    }
    let call = |(id, name, arguments)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    calls.into_iter().map(call).collect()
}

fn usage(stats: &GenerationStats) -> Value {
    let (prompt, answer) = (stats.prompt_tokens, stats.generated_tokens);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": { "cached_tokens": stats.reused_tokens },
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted_tokens,
            "rejected_prediction_tokens": stats.drafted_tokens - stats.accepted_tokens,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_and_calls_have_fields_of_their_own() {
        let call = |index| AnswerPiece::Call { index, id: format!("id{index}"), name: "f".to_owned() };
        let arguments = |index, text: &str| AnswerPiece::Arguments { index, text: text.to_owned() };
        let pieces = [
            AnswerPiece::Reasoning("Hm.".to_owned()),
            call(0),
            arguments(0, "{"),
            arguments(0, "}"),
            call(1),
            arguments(1, "{\"x\": 1}"),
        ];
        let format = CompletionFormat::new(Endpoint::Chat, "m".to_owned());
        let whole = format.whole(&pieces, &StopReason::EndOfText, &GenerationStats::default());
        let choice = &whole["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        assert_eq!(choice["message"]["reasoning_content"], "Hm.");
        let second = json!({ "id": "id1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } });
        assert_eq!(choice["message"]["tool_calls"][1], second);
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{}");
        let chunk = format.piece_chunk(&pieces[2]);
        let delta = json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "{" } }] });
        assert_eq!(chunk["choices"][0]["delta"], delta);
        let plain = format.whole(
            &[AnswerPiece::Content("Yes".to_owned())],
            &StopReason::MaxTokens,
            &GenerationStats::default(),
        );
        let choice = &plain["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!("Yes")));
        assert!(choice["message"].get("tool_calls").is_none() && choice["message"].get("reasoning_content").is_none());
    }
}
