//! The JSON of answers, whole and in chunks.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use thermocline_engine::session::{GenerationStats, StopReason};

use super::{answer_reader::AnswerPiece, choices::Choice, request::Endpoint};

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEvent {
    /// Its name, in protocols whose events have one.
    pub name: Option<&'static str>,
    /// Its data.
    pub data: String,
}

/// A new identifier: `prefix` and hexadecimal digits.
pub fn new_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}{:x}{:04x}", now.as_nanos(), COUNT.fetch_add(1, Relaxed) & 0xffff)
}

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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = new_id(match endpoint {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completion => "cmpl-",
        });
        CompletionFormat { endpoint, id, created: now.as_secs(), model }
    }

    /// The complete answer: its choices, which are numbered as they come, and the counts of all tokens.
    pub fn whole(&self, choices: Vec<Choice>, with_logprobs: bool, total: &GenerationStats) -> Value {
        let mut whole = self.frame(self.object(), json!(null), 0, None);
        let choice = |(index, mut choice): (usize, Choice)| {
            let mut json = self.whole_choice(index, &choice);
            if with_logprobs {
                json["logprobs"] = choice.logprobs.json(&choice.scored);
            }
            json
        };
        whole["choices"] = choices.into_iter().enumerate().map(choice).collect();
        whole["usage"] = usage(total);
        whole
    }

    fn object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completion => "text_completion",
        }
    }

    fn whole_choice(&self, index: usize, choice: &Choice) -> Value {
        let pieces = &choice.pieces;
        let content: String = pieces.iter().filter_map(AnswerPiece::content).collect();
        let calls = whole_calls(pieces);
        let finish = finish_reason(&choice.reason, choice.called);
        let (name, content) = match self.endpoint {
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
                ("message", message)
            }
            Endpoint::Completion => ("text", content.into()),
        };
        json!({ "index": index, name: content, "logprobs": null, "finish_reason": finish })
    }

    /// The chunk before the first text of choice `index`: a chat's role.
    pub fn first_chunk(&self, index: usize) -> Option<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        (self.endpoint == Endpoint::Chat).then(|| self.chunk(index, role, None))
    }

    /// The chunk of a piece of choice `index`.
    pub fn piece_chunk(&self, index: usize, piece: &AnswerPiece) -> Value {
        if self.endpoint == Endpoint::Completion {
            return self.chunk(index, piece.content().or(piece.reasoning()).unwrap_or_default().into(), None);
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
        self.chunk(index, delta, None)
    }

    /// A chunk of choice `index` without text.
    pub fn empty_chunk(&self, index: usize) -> Value {
        self.chunk(index, self.no_text(), None)
    }

    /// The chunk that says why choice `index` has ended; `called`: with calls of tools.
    pub fn final_chunk(&self, index: usize, reason: &StopReason, called: bool) -> Value {
        self.chunk(index, self.no_text(), Some(finish_reason(reason, called)))
    }

    /// The chunk of token counts.
    pub fn usage_chunk(&self, total: &GenerationStats) -> Value {
        let mut chunk = self.empty_chunk(0);
        chunk["choices"] = json!([]);
        chunk["usage"] = usage(total);
        chunk
    }

    fn no_text(&self) -> Value {
        if self.endpoint == Endpoint::Chat { json!({}) } else { "".into() }
    }

    fn chunk(&self, index: usize, content: Value, finish: Option<&str>) -> Value {
        let object = if self.endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" };
        self.frame(object, content, index, finish)
    }

    fn frame(&self, object: &str, content: Value, index: usize, finish: Option<&str>) -> Value {
        let name = if self.endpoint == Endpoint::Chat { "delta" } else { "text" };
        let choice = json!({ "index": index, name: content, "logprobs": null, "finish_reason": finish });
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
    let mut usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": { "cached_tokens": stats.reused_tokens },
        "completion_tokens_details": {
            "reasoning_tokens": stats.thought_tokens,
            "accepted_prediction_tokens": stats.accepted_tokens,
            "rejected_prediction_tokens": stats.drafted_tokens - stats.accepted_tokens,
        },
    });
    add_forgotten(&mut usage["prompt_tokens_details"], stats);
    usage
}

/// Adds the tokens and turns that are forgotten, a field of ours in every protocol, to `object`, if the conversation did not
/// fit into the context.
pub fn add_forgotten(object: &mut Value, stats: &GenerationStats) {
    if stats.forgotten_tokens > 0 {
        object["forgotten_tokens"] = stats.forgotten_tokens.into();
        object["forgotten_turns"] = stats.forgotten_turns.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::logprobs::LogprobsFormat;

    #[test]
    fn usage_names_forgotten_tokens_where_there_are_any() {
        let stats = GenerationStats { prompt_tokens: 5, ..GenerationStats::default() };
        assert!(usage(&stats)["prompt_tokens_details"].get("forgotten_tokens").is_none());
        let shortened = usage(&GenerationStats { forgotten_tokens: 7, forgotten_turns: 1, ..stats });
        let details = &shortened["prompt_tokens_details"];
        assert_eq!((&details["forgotten_tokens"], &details["forgotten_turns"]), (&json!(7), &json!(1)));
    }

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
        let choice = |pieces: Vec<AnswerPiece>, reason: StopReason, called: bool| {
            let logprobs = LogprobsFormat::new(Endpoint::Chat, None);
            let stats = GenerationStats::default();
            format.whole_choice(0, &Choice { pieces, scored: Vec::new(), reason, called, stats, logprobs })
        };
        let chunk = format.piece_chunk(3, &pieces[2]);
        let broken = choice(pieces[..4].to_vec(), StopReason::EndOfText, false);
        assert_eq!(broken["finish_reason"], "stop");
        let told = choice(pieces.to_vec(), StopReason::MaxTokens, true);
        assert_eq!(told["finish_reason"], "length");
        let said = choice(vec![AnswerPiece::Content("Yes".to_owned())], StopReason::MaxTokens, false);
        let choice = choice(pieces.to_vec(), StopReason::EndOfText, true);
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        assert_eq!(choice["message"]["reasoning_content"], "Hm.");
        let second = json!({ "id": "id1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } });
        assert_eq!(choice["message"]["tool_calls"][1], second);
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{}");
        let delta = json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "{" } }] });
        assert_eq!((&chunk["choices"][0]["delta"], &chunk["choices"][0]["index"]), (&delta, &json!(3)));
        assert_eq!((&said["finish_reason"], &said["message"]["content"]), (&json!("length"), &json!("Yes")));
        assert!(said["message"].get("tool_calls").is_none() && said["message"].get("reasoning_content").is_none());
    }
}
