//! The protocol that an answer is written in.

use serde_json::Value;
use thermocline_engine::session::GenerationStats;

use super::{answer_events::AnswerEvent, choices::AnswerChoice, stream_event::StreamEvent};

/// Formatter of one answer.
pub trait AnswerFormat: Send {
    /// True if events are lines rather than server-sent events.
    fn is_lines(&self) -> bool {
        false
    }

    /// Returns the events that a stream sends for one event of the answer.
    fn events(&mut self, event: AnswerEvent) -> Vec<StreamEvent>;

    /// Returns the whole answer.
    fn whole(&self, choices: &[AnswerChoice], total: &GenerationStats) -> Value;
}
