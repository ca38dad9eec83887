//! Statistics stored with an answer.

use serde::{Deserialize, Serialize};
use thermocline_engine::session::{GenerationStats, StopReason};

use crate::units::rate;

/// Counts, times and stop reason of an answer; stored as JSON. Times are in milliseconds, rates in tokens per second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerStats {
    /// `end_of_text`, `stop_string`, `max_tokens`, `context_full`, `cancelled` or `error`.
    pub reason: String,
    /// Error message in sentences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens reused from the KV cache.
    pub reused_tokens: usize,
    /// Generated tokens.
    pub generated_tokens: usize,
    /// Time from the request to the first token.
    pub time_to_first_token_ms: f64,
    /// Prompt tokens computed per second.
    pub prompt_tokens_per_second: f64,
    /// Tokens decoded per second.
    pub decode_tokens_per_second: f64,
    /// Tokens in the context at the end.
    pub context_used: usize,
    /// Length of the context.
    pub context_length: usize,
    /// Seed of the sampler.
    pub seed: u64,
}

impl AnswerStats {
    /// Statistics of a running (`reason` is `None`) or complete answer.
    pub fn new(stats: &GenerationStats, reason: Option<&StopReason>) -> Self {
        let reason = match reason {
            None => "",
            Some(StopReason::EndOfText) => "end_of_text",
            Some(StopReason::StopString(_)) => "stop_string",
            Some(StopReason::MaxTokens) => "max_tokens",
            Some(StopReason::ContextFull) => "context_full",
            Some(StopReason::Cancelled) => "cancelled",
        };
        AnswerStats {
            reason: reason.to_owned(),
            error: None,
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            generated_tokens: stats.generated_tokens,
            time_to_first_token_ms: stats.time_to_first_token.as_secs_f64() * 1e3,
            prompt_tokens_per_second: stats.prompt_rate(),
            decode_tokens_per_second: stats.decode_rate(),
            context_used: stats.context_used,
            context_length: stats.context_length,
            seed: stats.seed,
        }
    }

    /// Statistics of an answer that failed before it started.
    pub fn failed(sentence: String) -> Self {
        AnswerStats { reason: "error".to_owned(), error: Some(sentence), ..AnswerStats::default() }
    }

    /// Parses stored JSON.
    pub fn from_json(json: Option<&str>) -> Option<Self> {
        serde_json::from_str(json?).ok()
    }

    /// One line for the user.
    pub fn line(&self) -> String {
        let mut parts = Vec::new();
        if self.generated_tokens > 0 {
            if self.decode_tokens_per_second > 0.0 {
                parts.push(rate(self.decode_tokens_per_second));
            }
            parts.push(format!("first token {:.0} ms", self.time_to_first_token_ms));
            parts.push(format!("{} tokens", self.generated_tokens));
        }
        match &*self.reason {
            "max_tokens" => parts.push("reached the longest answer".to_owned()),
            "context_full" => parts.push("context full".to_owned()),
            "cancelled" => parts.push("stopped".to_owned()),
            "stop_string" => parts.push("ended by a stop word".to_owned()),
            "end_of_text" => parts.push("complete".to_owned()),
            _ => {}
        }
        parts.join("   ")
    }
}
