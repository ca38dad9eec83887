//! The shapes of answers.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use thermocline_engine::session::{GenerationStats, StopReason};

use super::ask::Kind;

/// One answer, whole or in pieces.
#[derive(Debug)]
pub struct Reply {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
}

impl Reply {
    /// A new one.
    pub fn new(kind: Kind, model: String) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        };
        let id = format!("{prefix}-{:x}{:04x}", now.as_nanos(), COUNT.fetch_add(1, Relaxed) & 0xffff);
        Reply { kind, id, created: now.as_secs(), model }
    }

    /// The whole answer.
    pub fn whole(&self, text: &str, reason: &StopReason, stats: &GenerationStats) -> Value {
        let (object, said) = match self.kind {
            Kind::Chat => {
                let message = json!({ "role": "assistant", "content": text, "refusal": null });
                ("chat.completion", ("message", message))
            }
            Kind::Completion => ("text_completion", ("text", text.into())),
        };
        let mut whole = self.frame(object, said, Some(reason));
        whole["usage"] = usage(stats);
        whole
    }

    /// What stands before the first piece of a stream.
    pub fn head(&self) -> Option<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        (self.kind == Kind::Chat).then(|| self.frame("chat.completion.chunk", ("delta", role), None))
    }

    /// A piece of a stream.
    pub fn piece(&self, text: &str) -> Value {
        match self.kind {
            Kind::Chat => self.frame("chat.completion.chunk", ("delta", json!({ "content": text })), None),
            Kind::Completion => self.frame("text_completion", ("text", text.into()), None),
        }
    }

    /// The piece that ends a stream.
    pub fn last(&self, reason: &StopReason) -> Value {
        match self.kind {
            Kind::Chat => self.frame("chat.completion.chunk", ("delta", json!({})), Some(reason)),
            Kind::Completion => self.frame("text_completion", ("text", "".into()), Some(reason)),
        }
    }

    /// A stream's figures.
    pub fn figures(&self, stats: &GenerationStats) -> Value {
        let mut figures = self.last(&StopReason::EndOfText);
        figures["choices"] = json!([]);
        figures["usage"] = usage(stats);
        figures
    }

    fn frame(&self, object: &str, (name, said): (&str, Value), reason: Option<&StopReason>) -> Value {
        let finish = reason.map(|reason| match reason {
            StopReason::EndOfText | StopReason::StopString(_) | StopReason::Cancelled => "stop",
            StopReason::MaxTokens | StopReason::ContextFull => "length",
        });
        let choice = json!({ "index": 0, name: said, "logprobs": null, "finish_reason": finish });
        let Reply { id, created, model, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": [choice] })
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
