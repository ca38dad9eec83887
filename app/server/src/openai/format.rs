//! Writes the JSON of answers, whole or in chunks.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use thermocline_engine::session::{GenerationStats, StopReason};

use super::{Endpoint, LogprobsFormat};
use crate::{
    answer_events::AnswerEvent,
    answer_format::AnswerFormat,
    answer_reader::{AnswerPiece, CompleteCall, complete_calls},
    choices::AnswerChoice,
    stream_event::{StreamEvent, add_forgotten, new_id},
};

/// Formatter of one answer. All chunks have the same id, time and model.
#[derive(Debug)]
pub struct CompletionFormat {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    /// Whether a stream ends with token counts.
    include_usage: bool,
    /// Whether to return log probabilities.
    with_logprobs: bool,
    /// Formatter of the log probabilities of the choice that is streamed.
    logprobs: LogprobsFormat,
}

impl CompletionFormat {
    /// Creates a formatter with a new id.
    pub fn new(endpoint: Endpoint, model: String, include_usage: bool, with_logprobs: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = new_id(match endpoint {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completion => "cmpl-",
        });
        let (created, logprobs) = (now.as_secs(), LogprobsFormat::new(endpoint, None));
        CompletionFormat { endpoint, id, created, model, include_usage, with_logprobs, logprobs }
    }

    fn whole_choice(&self, index: usize, choice: &AnswerChoice) -> Value {
        let pieces = &choice.pieces;
        let content: String = pieces.iter().filter_map(AnswerPiece::content).collect();
        let calls: Vec<Value> = complete_calls(pieces).iter().map(call_json).collect();
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

    /// Builds the chunk of one piece of choice `index`.
    fn piece_chunk(&self, index: usize, piece: &AnswerPiece) -> Value {
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

    fn no_text(&self) -> Value {
        if self.endpoint == Endpoint::Chat { json!({}) } else { "".into() }
    }

    fn chunk(&self, index: usize, content: Value, finish: Option<&str>) -> Value {
        let (object, name) = match self.endpoint {
            Endpoint::Chat => ("chat.completion.chunk", "delta"),
            Endpoint::Completion => ("text_completion", "text"),
        };
        let choice = json!({ "index": index, name: content, "logprobs": null, "finish_reason": finish });
        let CompletionFormat { id, created, model, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": [choice] })
    }

    /// Builds the chunks of new pieces. The first chunk has the log probabilities.
    fn piece_chunks(&self, index: usize, pieces: &[AnswerPiece], logprobs: Option<Value>) -> Vec<Value> {
        let mut chunks: Vec<Value> = pieces.iter().map(|piece| self.piece_chunk(index, piece)).collect();
        if let Some(logprobs) = logprobs {
            if chunks.is_empty() {
                chunks.push(self.chunk(index, self.no_text(), None));
            }
            chunks[0]["choices"][0]["logprobs"] = logprobs;
        }
        chunks
    }
}

impl AnswerFormat for CompletionFormat {
    fn events(&mut self, event: AnswerEvent) -> Vec<StreamEvent> {
        let (mut ends, mut counts) = (false, None);
        let mut chunks = match event {
            AnswerEvent::Begin { index, echo } => {
                self.logprobs = LogprobsFormat::new(self.endpoint, echo.as_deref());
                let role = json!({ "role": "assistant", "content": "" });
                if self.endpoint == Endpoint::Chat { vec![self.chunk(index, role, None)] } else { Vec::new() }
            }
            AnswerEvent::Pieces { index, pieces, scored } => {
                let logprobs = (self.with_logprobs && !scored.is_empty()).then(|| self.logprobs.json(&scored));
                self.piece_chunks(index, &pieces, logprobs)
            }
            AnswerEvent::End(end) => {
                ends = end.last;
                counts = Some(usage(&end.total)).filter(|_| ends && self.include_usage);
                vec![self.chunk(end.index, self.no_text(), Some(finish_reason(&end.reason, end.called)))]
            }
            AnswerEvent::Failed(error) => return vec![StreamEvent { name: None, data: error.json().to_string() }],
        };
        if self.include_usage {
            chunks.iter_mut().for_each(|chunk| chunk["usage"] = Value::Null);
        }
        chunks.extend(counts.map(|counts| {
            let mut chunk = self.chunk(0, self.no_text(), None);
            (chunk["choices"], chunk["usage"]) = (json!([]), counts);
            chunk
        }));
        let end = ends.then(|| "[DONE]".to_owned());
        let data = chunks.iter().map(Value::to_string).chain(end);
        data.map(|data| StreamEvent { name: None, data }).collect()
    }

    /// Builds the answer: its choices, numbered in order, and the counts of all tokens.
    fn whole(&self, choices: &[AnswerChoice], total: &GenerationStats) -> Value {
        let mut whole = self.chunk(0, json!(null), None);
        if self.endpoint == Endpoint::Chat {
            whole["object"] = "chat.completion".into();
        }
        let choice = |(index, choice): (usize, &AnswerChoice)| {
            let mut json = self.whole_choice(index, choice);
            if self.with_logprobs {
                json["logprobs"] = LogprobsFormat::new(self.endpoint, choice.echo.as_deref()).json(&choice.scored);
            }
            json
        };
        whole["choices"] = choices.iter().enumerate().map(choice).collect();
        whole["usage"] = usage(total);
        whole
    }
}

fn finish_reason(reason: &StopReason, called: bool) -> &'static str {
    match reason {
        StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled if called => "tool_calls",
        StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled => "stop",
        StopReason::MaxTokens | StopReason::ContextFull => "length",
    }
}

fn call_json(call: &CompleteCall) -> Value {
    let CompleteCall { id, name, arguments } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
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
            "accepted_prediction_tokens": stats.accepted_tokens(),
            "rejected_prediction_tokens": stats.drafted_tokens() - stats.accepted_tokens(),
        },
    });
    add_forgotten(&mut usage["prompt_tokens_details"], stats);
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let format = CompletionFormat::new(Endpoint::Chat, "m".to_owned(), false, false);
        let choice = |pieces: Vec<AnswerPiece>, reason: StopReason, called: bool| {
            format.whole_choice(0, &AnswerChoice { pieces, reason, called, ..AnswerChoice::new(None) })
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
