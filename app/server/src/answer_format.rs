//! The protocol in which an answer is written.

use serde_json::Value;
use thermocline_engine::session::GenerationStats;

use super::{answer_events::AnswerEvent, choices::AnswerChoice, stream_event::StreamEvent};

/// Formatter of one answer.
pub trait AnswerFormat: Send {
    /// True if events are lines rather than server-sent events.
    fn is_lines(&self) -> bool {
        false
    }

    /// The events that a stream sends for one of the answer.
    fn events(&mut self, event: AnswerEvent) -> Vec<StreamEvent>;

    /// The whole answer.
    fn whole(&self, choices: &[AnswerChoice], total: &GenerationStats) -> Value;
}
