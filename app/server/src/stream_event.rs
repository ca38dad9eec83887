//! Events of an answer that is sent while it is generated, and the fields that all protocols write.

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
    /// Its name, in protocols whose events have one.
    pub name: Option<&'static str>,
    /// Its data.
    pub data: String,
}

/// The name of a comment.
const COMMENT: &str = ":";

impl StreamEvent {
    /// A sign of life, which says nothing.
    pub fn comment(text: &str) -> Self {
        StreamEvent { name: Some(COMMENT), data: text.to_owned() }
    }

    /// As a server-sent event.
    pub fn into_sse(self) -> Event {
        match self.name {
            Some(COMMENT) => Event::default().comment(self.data),
            Some(name) => Event::default().event(name).data(self.data),
            None => Event::default().data(self.data),
        }
    }

    /// As a line; comments are none.
    pub fn into_line(self) -> Option<String> {
        (self.name != Some(COMMENT)).then(|| self.data + "\n")
    }
}

/// A new identifier: `prefix` and hexadecimal digits.
pub fn new_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}{:x}{:04x}", now.as_nanos(), COUNT.fetch_add(1, Relaxed) & 0xffff)
}

/// Adds the tokens and turns that are forgotten, a field of ours in every protocol, to `object`, if
/// the conversation did not fit into the context.
pub fn add_forgotten(object: &mut Value, stats: &GenerationStats) {
    if stats.forgotten_tokens > 0 {
        object["forgotten_tokens"] = stats.forgotten_tokens.into();
        object["forgotten_turns"] = stats.forgotten_turns.into();
    }
}
