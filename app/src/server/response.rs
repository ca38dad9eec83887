//! The JSON of answers, whole and in chunks.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use thermocline_engine::{
    session::{AnswerText, GenerationStats, StopReason},
    tokenizer::reasoning::AnswerPart,
};

use super::request::Endpoint;

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
    pub fn whole(&self, text: &AnswerText, reason: &StopReason, stats: &GenerationStats) -> Value {
        let (object, content) = match self.endpoint {
            Endpoint::Chat => {
                let mut fields = AnswerFields::default();
                let mut message = json!({ "role": "assistant", "content": "", "refusal": null });
                for (field, piece) in text.pieces().filter_map(|(part, piece)| fields.push(part, piece)) {
                    let before = message[field].as_str().unwrap_or_default();
                    message[field] = format!("{before}{piece}").into();
                }
                ("chat.completion", ("message", message))
            }
            Endpoint::Completion => ("text_completion", ("text", (**text).into())),
        };
        let mut whole = self.frame(object, content, Some(reason));
        whole["usage"] = usage(stats);
        whole
    }

    /// The chunk before the first text: a chat's role.
    pub fn first_chunk(&self) -> Option<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        (self.endpoint == Endpoint::Chat).then(|| self.frame("chat.completion.chunk", ("delta", role), None))
    }

    /// A chunk of text for a field of the message.
    pub fn text_chunk(&self, field: &'static str, text: &str) -> Value {
        match self.endpoint {
            Endpoint::Chat => self.frame("chat.completion.chunk", ("delta", json!({ field: text })), None),
            Endpoint::Completion => self.frame("text_completion", ("text", text.into()), None),
        }
    }

    /// The chunk that says why the answer has ended.
    pub fn final_chunk(&self, reason: &StopReason) -> Value {
        match self.endpoint {
            Endpoint::Chat => self.frame("chat.completion.chunk", ("delta", json!({})), Some(reason)),
            Endpoint::Completion => self.frame("text_completion", ("text", "".into()), Some(reason)),
        }
    }

    /// The chunk of token counts.
    pub fn usage_chunk(&self, stats: &GenerationStats) -> Value {
        let mut chunk = self.final_chunk(&StopReason::EndOfText);
        chunk["choices"] = json!([]);
        chunk["usage"] = usage(stats);
        chunk
    }

    fn frame(&self, object: &str, (name, content): (&str, Value), reason: Option<&StopReason>) -> Value {
        let finish = reason.map(|reason| match reason {
            StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled => "stop",
            StopReason::MaxTokens | StopReason::ContextFull => "length",
        });
        let choice = json!({ "index": 0, name: content, "logprobs": null, "finish_reason": finish });
        let CompletionFormat { id, created, model, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": [choice] })
    }
}

/// Fields of a message by the parts of an answer: thoughts are `reasoning_content`. Line ends at the beginning of thoughts, and
/// between thoughts and answer, are left out.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerFields {
    thought: bool,
    spoke: bool,
}

impl AnswerFields {
    /// The field for the next piece, and its text; `None` if nothing of it is left.
    pub fn push<'a>(&mut self, part: AnswerPart, piece: &'a str) -> Option<(&'static str, &'a str)> {
        let thinking = part == AnswerPart::Thinking;
        let begins = if thinking { !self.thought } else { self.thought && !self.spoke };
        let piece = if begins { piece.trim_start_matches('\n') } else { piece };
        if piece.is_empty() {
            return None;
        }
        *if thinking { &mut self.thought } else { &mut self.spoke } = true;
        Some((if thinking { "reasoning_content" } else { "content" }, piece))
    }
}

fn usage(stats: &GenerationStats) -> Value {
    let (prompt, answer) = (stats.prompt_tokens, stats.generated_tokens);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": { "cached_tokens": stats.reused_tokens },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_have_a_field_of_their_own() {
        let mut text = AnswerText::default();
        for (part, piece) in [
            (AnswerPart::Thinking, "\n"),
            (AnswerPart::Thinking, "Hm.\n"),
            (AnswerPart::Answer, "\n\nYes"),
            (AnswerPart::Answer, "\n."),
        ] {
            text.push(part, piece);
        }
        let format = CompletionFormat::new(Endpoint::Chat, "m".to_owned());
        let whole = format.whole(&text, &StopReason::EndOfText, &GenerationStats::default());
        let message = &whole["choices"][0]["message"];
        assert_eq!((&message["reasoning_content"], &message["content"]), (&"Hm.\n".into(), &"Yes\n.".into()));
        let chunk = format.text_chunk("reasoning_content", "Hm");
        assert_eq!(chunk["choices"][0]["delta"], json!({ "reasoning_content": "Hm" }));
        let mut plain = AnswerText::default();
        plain.push(AnswerPart::Answer, "\nYes");
        let whole = format.whole(&plain, &StopReason::EndOfText, &GenerationStats::default());
        let message = &whole["choices"][0]["message"];
        assert_eq!((&message["content"], message.get("reasoning_content")), (&"\nYes".into(), None));
    }
}
