//! Statistics that are stored with an answer.

use serde::{Deserialize, Serialize};
use thermocline_engine::session::{FfnReads, GenerationStats, StopReason};

use crate::units::{bytes, rate};

/// Counts, times and stop reason of an answer, stored as JSON. Times are in milliseconds, rates in
/// tokens per second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerStats {
    /// `end_of_text`, `stop_string`, `max_tokens`, `context_full`, `cancelled`, `model_closed`,
    /// `window_closed` or `error`.
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
    /// Drafted tokens.
    #[serde(skip_serializing_if = "is_zero")]
    pub drafted_tokens: usize,
    /// Drafted tokens that are part of the answer.
    #[serde(skip_serializing_if = "is_zero")]
    pub accepted_tokens: usize,
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
    /// Tokens of the chat that no longer fit into the model's context.
    #[serde(skip_serializing_if = "is_zero")]
    pub forgotten_tokens: usize,
    /// Oldest turns of the chat that no longer fit into the model's context.
    #[serde(skip_serializing_if = "is_zero")]
    pub forgotten_turns: usize,
    /// Bytes read and skipped for the answer's tokens, if the engine recorded neurons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<AnswerReads>,
    /// Seed of the sampler.
    pub seed: u64,
    /// Key of the model that wrote the answer; `None` for answers of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<String>,
}

/// Name of a stop reason in JSON.
pub fn reason_name(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::EndOfText => "end_of_text",
        StopReason::StopString(_) => "stop_string",
        StopReason::MaxTokens => "max_tokens",
        StopReason::ContextFull => "context_full",
        StopReason::Cancelled => "cancelled",
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Bytes that the FFNs read and skipped for an answer's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerReads {
    /// Mean bytes of weights that a token reads.
    pub read_bytes: u64,
    /// Mean bytes of weights that a token would read with nothing skipped.
    pub dense_bytes: u64,
    /// Fraction of the neurons that the engine skipped.
    pub skipped: f64,
    /// True if a GPU computed some of the neurons. `read_bytes` then counts only what the CPU read.
    pub on_device: bool,
}

impl AnswerReads {
    fn new(reads: &FfnReads) -> Option<Self> {
        let tokens = reads.tokens as u64;
        (tokens > 0).then(|| AnswerReads {
            read_bytes: reads.read_bytes / tokens,
            dense_bytes: reads.dense_bytes / tokens,
            skipped: 1.0 - reads.used_neurons as f64 / reads.neurons.max(1) as f64,
            on_device: reads.on_device,
        })
    }

    /// Formats the reads in one line for the user.
    fn line(&self) -> String {
        let (read, dense) = (bytes(self.read_bytes), bytes(self.dense_bytes));
        if self.on_device {
            return format!(
                "Per token the CPU read {read} of {dense} of FFN weights (reads of VRAM by the GPU are not counted)"
            );
        }
        if self.skipped < 0.0005 && self.read_bytes >= self.dense_bytes - self.dense_bytes / 50 {
            return format!("Per token {read} of FFN weights were read, nothing was skipped");
        }
        if self.skipped < 0.0005 {
            return format!(
                "Per token {read} of {dense} of FFN weights were read (rows multiplied by zero were skipped)"
            );
        }
        let skipped = 100.0 * self.skipped;
        format!("Per token {read} of {dense} of FFN weights were read, {skipped:.0} % of the neurons skipped")
    }
}

impl AnswerStats {
    /// Collects statistics of a running (`reason` is `None`) or complete answer.
    pub fn new(stats: &GenerationStats, reason: Option<&StopReason>) -> Self {
        AnswerStats {
            reason: reason.map_or("", reason_name).to_owned(),
            error: None,
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            generated_tokens: stats.generated_tokens,
            drafted_tokens: stats.drafted_tokens(),
            accepted_tokens: stats.accepted_tokens(),
            time_to_first_token_ms: stats.time_to_first_token.as_secs_f64() * 1e3,
            prompt_tokens_per_second: stats.prompt_rate(),
            decode_tokens_per_second: stats.decode_rate(),
            context_used: stats.context_used,
            context_length: stats.context_length,
            forgotten_tokens: stats.forgotten_tokens,
            forgotten_turns: stats.forgotten_turns,
            reads: AnswerReads::new(&stats.ffn),
            seed: stats.seed,
            writer: None,
        }
    }

    /// Statistics of an answer that failed before it began.
    pub fn failed(sentence: String) -> Self {
        AnswerStats { reason: "error".to_owned(), error: Some(sentence), ..AnswerStats::default() }
    }

    /// Parses stored JSON.
    pub fn from_json(json: Option<&str>) -> Option<Self> {
        serde_json::from_str(json?).ok()
    }

    /// Formats bytes read and skipped in one line; `None` if the engine recorded no neurons.
    pub fn reads_line(&self) -> Option<String> {
        self.reads.map(|reads| reads.line())
    }

    /// Formats the statistics in one line for the user.
    pub fn line(&self) -> String {
        let mut parts = Vec::new();
        if self.generated_tokens > 0 {
            if self.decode_tokens_per_second > 0.0 {
                parts.push(format!("{} on average", rate(self.decode_tokens_per_second)));
            }
            parts.push(format!("first token {:.0} ms", self.time_to_first_token_ms));
            parts.push(format!("{} tokens", self.generated_tokens));
            if self.drafted_tokens > 0 {
                parts.push(format!("{} of {} drafts accepted", self.accepted_tokens, self.drafted_tokens));
            }
        }
        match &*self.reason {
            // If a chat sets no longest answer, its answers are at most as long as the context.
            "max_tokens" if self.generated_tokens == self.context_length => {
                parts.push("stopped: the answer filled the context".to_owned());
            }
            "max_tokens" => parts.push("stopped: token limit reached".to_owned()),
            "context_full" => parts.push("context full".to_owned()),
            "cancelled" => parts.push("stopped".to_owned()),
            "model_closed" => parts.push("stopped: the model was closed".to_owned()),
            "window_closed" => parts.push("stopped: the window was closed".to_owned()),
            "stop_string" => parts.push("stopped at a stop word".to_owned()),
            "end_of_text" => parts.push("complete".to_owned()),
            _ => {}
        }
        parts.join("   ")
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{DraftCounts, DraftSource};

    use super::*;

    #[test]
    fn reads_line_is_honest_about_what_was_measured() {
        let reads = FfnReads {
            tokens: 10,
            read_bytes: 10 << 20,
            dense_bytes: 40 << 20,
            used_neurons: 10,
            neurons: 100,
            on_device: false,
        };
        let line = |reads: FfnReads| {
            let stats = GenerationStats { ffn: reads, ..GenerationStats::default() };
            AnswerStats::new(&stats, None).reads_line()
        };
        assert_eq!(
            line(reads).as_deref(),
            Some("Per token 1.0 MiB of 4.0 MiB of FFN weights were read, 90 % of the neurons skipped"),
            "no time that no run has shown"
        );
        let zeros = line(FfnReads { used_neurons: 100, ..reads }).unwrap();
        assert!(zeros.contains("1.0 MiB of 4.0 MiB") && !zeros.contains('%'), "{zeros}");
        let dense = line(FfnReads { read_bytes: 40 << 20, used_neurons: 100, ..reads }).unwrap();
        assert!(dense.ends_with("4.0 MiB of FFN weights were read, nothing was skipped"), "{dense}");
        let device = line(FfnReads { on_device: true, ..reads }).unwrap();
        assert!(device.starts_with("Per token the CPU read 1.0 MiB of 4.0 MiB") && !device.contains("hot"), "{device}");
        assert_eq!(line(FfnReads::default()), None, "not recorded");
    }

    #[test]
    fn stats_of_earlier_versions_are_read() {
        let old = AnswerStats::from_json(Some(r#"{"reason": "end_of_text", "generated_tokens": 3}"#)).unwrap();
        assert_eq!((old.generated_tokens, old.forgotten_tokens, old.reads), (3, 0, None));
        let json = serde_json::to_string(&old).unwrap();
        assert!(!json.contains("forgotten") && !json.contains("reads") && !json.contains("drafted"), "{json}");
    }

    #[test]
    fn line_says_which_limit_an_answer_reached() {
        let stats = |generated_tokens| {
            let stats = GenerationStats { generated_tokens, context_length: 512, ..GenerationStats::default() };
            AnswerStats::new(&stats, Some(&StopReason::MaxTokens)).line()
        };
        assert!(stats(512).ends_with("stopped: the answer filled the context"), "{}", stats(512));
        assert!(stats(100).ends_with("stopped: token limit reached"), "{}", stats(100));
    }

    #[test]
    fn line_says_how_many_drafts_were_accepted() {
        let mut stats = GenerationStats { generated_tokens: 40, ..GenerationStats::default() };
        assert!(!AnswerStats::new(&stats, None).line().contains("drafted"));
        stats.drafts.add(DraftSource::Lookup, DraftCounts { drafted: 12, accepted: 7 });
        stats.drafts.add(DraftSource::Head, DraftCounts { drafted: 8, accepted: 5 });
        let figures = AnswerStats::new(&stats, None);
        assert!(figures.line().contains("40 tokens   12 of 20 drafts accepted"), "{}", figures.line());
        let json = serde_json::to_string(&figures).unwrap();
        assert_eq!(AnswerStats::from_json(Some(&json)), Some(figures));
    }

    /// The bar above shows the current speed, so this line must show the average.
    #[test]
    fn line_calls_the_speed_of_an_answer_an_average() {
        let decode_time = std::time::Duration::from_secs(2);
        let stats =
            GenerationStats { generated_tokens: 11, decode_steps: 10, decode_time, ..GenerationStats::default() };
        let line = AnswerStats::new(&stats, None).line();
        assert!(line.contains("on average"), "{line}");
    }
}
