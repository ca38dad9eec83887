//! What a session reports while it generates.

use std::time::Duration;

use super::DeviceEvent;
use crate::error::Error;

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn or text.
    EndOfText,
    /// A stop string occurred; this one.
    StopString(String),
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller cancelled.
    Cancelled,
}

/// Figures of one generation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationStats {
    /// Tokens of the prompt (of what was left of it, if it was shortened to fit).
    pub prompt_tokens: usize,
    /// Of these, tokens that were still in the KV cache and were not computed again.
    pub reused_tokens: usize,
    /// Tokens generated: one [`Event::Token`] each. A token that ended the text is not among them.
    pub generated_tokens: usize,
    /// Decoding steps: generated tokens that were fed back to find the next one.
    pub decode_steps: usize,
    /// Time to compute the prompt, without the turns of other sessions.
    pub prompt_time: Duration,
    /// Time from the request to the first token, waiting included.
    pub time_to_first_token: Duration,
    /// Time of all decoding steps, without the turns of other sessions.
    pub decode_time: Duration,
    /// Tokens now in the context.
    pub context_used: usize,
    /// Length of the context.
    pub context_length: usize,
    /// Seed that was used.
    pub seed: u64,
}

impl GenerationStats {
    /// Prompt tokens computed per second.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens.saturating_sub(self.reused_tokens), self.prompt_time)
    }

    /// Decoding steps per second.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_steps, self.decode_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// One report. After [`Event::Done`] or [`Event::Error`] the channel closes.
#[derive(Debug)]
pub enum Event {
    /// The prompt is being computed.
    Prompt {
        /// Tokens in the cache so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen. While its text is incomplete the event waits for the next token, so that the text of the last
    /// event, whatever ends the generation, is complete.
    Token {
        /// Its id.
        id: u32,
        /// Text that became complete with it: may be empty (inside a UTF-8 character or a possible stop string) and
        /// may hold the text of several tokens.
        text: String,
    },
    /// Something happened to the GPU; the generation goes on.
    Device(DeviceEvent),
    /// Running figures, at most a few times per second.
    Stats(GenerationStats),
    /// The end.
    Done {
        /// Why.
        reason: StopReason,
        /// Final figures.
        stats: GenerationStats,
    },
    /// The end, by an error. What was generated before it stands.
    Error(Error),
}
