//! The latest responses, kept in memory for later requests to continue.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde_json::Value;

use crate::request_message::RequestMessage;

/// Most stored responses, and most bytes of them as JSON.
const MOST: usize = 256;
const MOST_BYTES: usize = 256 << 20;

/// A stored response.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredResponse {
    /// Identifier of the response.
    pub id: String,
    /// The conversation up to the response's end, without instructions.
    pub messages: Vec<RequestMessage>,
    /// The response as it was sent.
    pub response: Value,
}

/// The latest responses.
#[derive(Debug, Default)]
pub struct ResponseStore {
    /// Responses from oldest to newest, with their bytes.
    kept: Mutex<VecDeque<(StoredResponse, usize)>>,
}

impl ResponseStore {
    /// Stores a response, and drops the oldest ones to make room.
    pub fn insert(&self, response: StoredResponse) {
        let messages: usize = response.messages.iter().map(RequestMessage::bytes).sum();
        let bytes = messages + response.response.to_string().len();
        let mut kept = self.kept.lock();
        kept.push_back((response, bytes));
        let mut total: usize = kept.iter().map(|(_, bytes)| bytes).sum();
        while kept.len() > MOST || total > MOST_BYTES {
            let Some((_, bytes)) = kept.pop_front() else { break };
            total -= bytes;
        }
    }

    /// Returns the response with this identifier, if it is still stored.
    pub fn get(&self, id: &str) -> Option<StoredResponse> {
        self.kept.lock().iter().find(|(response, _)| response.id == id).map(|(response, _)| response.clone())
    }

    /// Deletes a response; `false` if it was not stored.
    pub fn remove(&self, id: &str) -> bool {
        let mut kept = self.kept.lock();
        let before = kept.len();
        kept.retain(|(response, _)| response.id != id);
        kept.len() < before
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thermocline_engine::session::Role;

    use super::*;

    #[test]
    fn store_keeps_the_latest_within_its_bounds() {
        let store = ResponseStore::default();
        let response = |id: usize, text: String| StoredResponse {
            id: id.to_string(),
            messages: vec![RequestMessage::new(Role::User, text)],
            response: json!({}),
        };
        (0..MOST + 1).for_each(|id| store.insert(response(id, "a".to_owned())));
        assert_eq!((store.get("0"), store.get("1").is_some()), (None, true));
        assert!(store.remove("1") && !store.remove("1"));
        store.insert(response(1000, "b".repeat(MOST_BYTES - 1000)));
        assert!(store.get("1000").is_some() && store.get("100").is_none(), "the old ones had to go");
        store.insert(response(1001, "c".repeat(MOST_BYTES)));
        assert_eq!((store.get("1000"), store.get("1001")), (None, None), "one that is too large is not kept");
    }
}
