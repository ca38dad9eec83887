//! Answers that later requests may continue: the latest ones, in memory.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde_json::Value;

use crate::request_message::RequestMessage;

/// Most responses that are kept, and most bytes of them as JSON.
const MOST: usize = 256;
const MOST_BYTES: usize = 32 << 20;

/// A response that is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredResponse {
    /// Its identifier.
    pub id: String,
    /// The conversation up to its end, without instructions.
    pub messages: Vec<RequestMessage>,
    /// The response as it was sent.
    pub response: Value,
}

/// The latest responses.
#[derive(Debug, Default)]
pub struct ResponseStore {
    /// The oldest first, with their bytes.
    kept: Mutex<VecDeque<(StoredResponse, usize)>>,
}

impl ResponseStore {
    /// Keeps a response; the oldest ones make room for it.
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

    /// The response of this identifier, if it is still kept.
    pub fn get(&self, id: &str) -> Option<StoredResponse> {
        self.kept.lock().iter().find(|(response, _)| response.id == id).map(|(response, _)| response.clone())
    }

    /// Forgets a response; `false` if it was not kept.
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
