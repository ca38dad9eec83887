//! Events of a streamed answer, and the fields that all protocols write.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::response::sse::Event;
use serde_json::Value;
use thermocline_engine::session::GenerationStats;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEvent {
    /// Name of the event, in protocols that name events.
    pub name: Option<&'static str>,
    /// Data of the event.
    pub data: String,
}

/// The name of a comment.
const COMMENT: &str = ":";

impl StreamEvent {
    /// Creates a comment, which keeps the connection alive.
    pub fn comment(text: &str) -> Self {
        StreamEvent { name: Some(COMMENT), data: text.to_owned() }
    }

    /// Converts to a server-sent event.
    pub fn into_sse(self) -> Event {
        match self.name {
            Some(COMMENT) => Event::default().comment(self.data),
            Some(name) => Event::default().event(name).data(self.data),
            None => Event::default().data(self.data),
        }
    }

    /// Converts to a line of JSON; `None` for a comment.
    pub fn into_line(self) -> Option<String> {
        (self.name != Some(COMMENT)).then(|| self.data + "\n")
    }
}

/// Creates an identifier: `prefix` and hexadecimal digits.
pub fn new_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}{:x}{:04x}", now.as_nanos(), COUNT.fetch_add(1, Relaxed) & 0xffff)
}

/// Adds the counts of forgotten tokens and turns to `object`, if the conversation did not fit into
/// the context. The field is our own, in every protocol.
pub fn add_forgotten(object: &mut Value, stats: &GenerationStats) {
    if stats.forgotten_tokens > 0 {
        object["forgotten_tokens"] = stats.forgotten_tokens.into();
        object["forgotten_turns"] = stats.forgotten_turns.into();
    }
}
