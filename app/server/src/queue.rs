//! The queue for the server's slots, which are sessions of the engine. Each slot answers one
//! request at a time; further requests wait in order of arrival. A request gets the slot whose last
//! prompt it continues, so that the session can reuse its KV cache. Otherwise it gets the slot that
//! has been unused longest. The engine then copies the common beginning from another slot.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use parking_lot::Mutex;
use thermocline_engine::{
    Error,
    session::{Engine, Priority, Prompt, Session, SessionOptions},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{error::ApiError, waiting_line::WaitingLine};

/// Distance between marks ([`marks`]): bytes of a text, or tokens of a list of token ids.
const BYTES_OF_MARK: usize = 64;
const TOKENS_OF_MARK: usize = 16;

/// The waiting requests and the slots.
#[derive(Debug)]
pub struct RequestQueue {
    permits: Arc<Semaphore>,
    line: WaitingLine,
    slots: Arc<Mutex<Vec<SessionSlot>>>,
}

/// A session and the prompt in its context.
#[derive(Debug, Default)]
struct SessionSlot {
    session: Option<Arc<Session>>,
    /// Marks of the slot's last prompt.
    marks: Vec<u64>,
    /// Number of the request that used the slot last; 0: none.
    used: u64,
    busy: bool,
}

/// The right to use a slot. Dropping it frees the slot.
#[derive(Debug)]
pub struct SessionPermit {
    slots: Arc<Mutex<Vec<SessionSlot>>>,
    at: usize,
    _permit: OwnedSemaphorePermit,
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        // Free the slot before the next request gets the permit.
        self.slots.lock()[self.at].busy = false;
    }
}

fn is_session_of(session: &Session, engine: &Engine) -> bool {
    Arc::ptr_eq(session.engine().model(), engine.model())
}

/// Hashes a prompt up to each message, or up to every few bytes or tokens of a text. Prompts that
/// begin alike have the same first marks.
pub fn marks(prompt: &Prompt) -> Vec<u64> {
    let (mut hasher, mut marks) = (DefaultHasher::new(), Vec::new());
    let mut mark = |hasher: &DefaultHasher| marks.push(hasher.finish());
    match prompt {
        Prompt::Chat(messages) | Prompt::Continue(messages) => {
            for message in messages {
                (message.role as u8, &message.content).hash(&mut hasher);
                mark(&hasher);
            }
        }
        Prompt::Text(text) => {
            for piece in text.as_bytes().chunks_exact(BYTES_OF_MARK) {
                piece.hash(&mut hasher);
                mark(&hasher);
            }
        }
        // Nothing of a pair is computed again.
        Prompt::Pair { .. } => {}
        Prompt::Tokens(tokens) => {
            for piece in tokens.chunks_exact(TOKENS_OF_MARK) {
                piece.hash(&mut hasher);
                mark(&hasher);
            }
        }
    }
    marks
}

/// The free slot whose last prompt is the longest that these marks continue. Without one, the free
/// slot unused longest.
fn slot_for(slots: &[SessionSlot], marks: &[u64]) -> Option<usize> {
    let free = || slots.iter().enumerate().filter(|(_, slot)| !slot.busy);
    let continued = free().filter(|(_, slot)| !slot.marks.is_empty() && marks.starts_with(&slot.marks));
    let continued = continued.max_by_key(|(_, slot)| (slot.marks.len(), slot.used));
    continued.or_else(|| free().min_by_key(|(_, slot)| slot.used)).map(|(at, _)| at)
}

impl RequestQueue {
    /// Creates an empty queue for at most `max_waiting` requests and `parallel` slots, at least
    /// one.
    pub fn new(max_waiting: usize, parallel: usize) -> Self {
        let slots: Vec<SessionSlot> = (0..parallel.max(1)).map(|_| SessionSlot::default()).collect();
        RequestQueue {
            permits: Arc::new(Semaphore::new(slots.len())),
            line: WaitingLine::new(max_waiting),
            slots: Arc::new(Mutex::new(slots)),
        }
    }

    /// Waits for a slot for `prompt`. Dropping the future leaves the queue.
    pub async fn acquire(&self, prompt: Option<&Prompt>) -> Result<SessionPermit, ApiError> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let _place = self.line.enter()?;
                let stopped = |_| ApiError::unavailable("the server is being stopped");
                Arc::clone(&self.permits).acquire_owned().await.map_err(stopped)?
            }
        };
        let marks = prompt.map(marks).unwrap_or_default();
        let mut slots = self.slots.lock();
        let latest = slots.iter().map(|slot| slot.used).max().unwrap_or(0);
        // There are as many permits as slots, so one slot is free.
        let Some(at) = slot_for(&slots, &marks) else { return Err(ApiError::unavailable("every slot is in use")) };
        let slot = &mut slots[at];
        (slot.marks, slot.used, slot.busy) = (marks, latest + 1, true);
        Ok(SessionPermit { slots: Arc::clone(&self.slots), at, _permit: permit })
    }

    /// Returns the session of `engine` in the slot of `permit`, and opens it if necessary.
    pub fn session(&self, engine: &Engine, permit: &SessionPermit) -> Result<Arc<Session>, Error> {
        let mut slots = self.slots.lock();
        // Drop idle sessions of another engine first, to make room.
        for (at, slot) in slots.iter_mut().enumerate() {
            if (!slot.busy || at == permit.at) && slot.session.as_ref().is_some_and(|it| !is_session_of(it, engine)) {
                slot.session = None;
            }
        }
        let slot = &mut slots[permit.at];
        if let Some(session) = &slot.session {
            return Ok(Arc::clone(session));
        }
        // Chats of the window have priority.
        let options = SessionOptions { priority: Priority::Background, ..SessionOptions::default() };
        Ok(Arc::clone(slot.session.insert(Arc::new(engine.session(options)?))))
    }

    /// Cancels and drops all sessions except those of `engine`.
    pub fn release_session_unless(&self, engine: Option<&Engine>) {
        for slot in self.slots.lock().iter_mut() {
            if slot.session.as_ref().is_some_and(|it| !engine.is_some_and(|engine| is_session_of(it, engine)))
                && let Some(session) = slot.session.take()
            {
                session.cancel();
            }
        }
    }

    /// Refuses all waiting and later requests. Permits already given stay valid.
    pub fn close(&self) {
        self.permits.close();
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Returns the number of slots, and the number of slots in use.
    pub fn slots(&self) -> (usize, usize) {
        let slots = self.slots.lock();
        (slots.len(), slots.iter().filter(|slot| slot.busy).count())
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{Message, Role};

    use super::*;

    fn chat(texts: &[&str]) -> Vec<u64> {
        let message = |text: &&str| Message::new(Role::User, (*text).to_owned());
        marks(&Prompt::Chat(texts.iter().map(message).collect()))
    }

    #[test]
    fn a_prompt_gets_the_slot_that_it_continues_or_the_one_longest_unused() {
        let slot = |marks: Vec<u64>, used, busy| SessionSlot { session: None, marks, used, busy };
        let slots = [
            slot(chat(&["a"]), 4, false),
            slot(chat(&["a", "b", "c"]), 2, false),
            slot(chat(&["x"]), 1, true),
            slot(chat(&["y", "z"]), 3, false),
        ];
        assert_eq!(slot_for(&slots, &chat(&["a", "b", "c", "d", "e"])), Some(1));
        assert_eq!(slot_for(&slots, &chat(&["a", "e"])), Some(0));
        // Its own slot is in use, or its second message differs.
        assert_eq!(slot_for(&slots, &chat(&["x", "z"])), Some(1));
        assert_eq!(slot_for(&slots, &chat(&["y", "?"])), Some(1));
        assert_eq!(slot_for(&slots, &[]), Some(1));
        assert_eq!(slot_for(&slots[2..3], &[]), None);
    }

    #[test]
    fn marks_of_texts_and_tokens_are_those_of_their_beginnings() {
        let text = "0123456789".repeat(20);
        let (long, short) = (marks(&Prompt::Text(text.clone())), marks(&Prompt::Text(text[..150].to_owned())));
        assert_eq!((long.len(), &long[..2]), (3, &short[..]));
        let tokens: Vec<u32> = (0..50).collect();
        let (long, short) = (marks(&Prompt::Tokens(tokens.clone())), marks(&Prompt::Tokens(tokens[..40].to_vec())));
        assert_eq!((long.len(), &long[..2]), (3, &short[..]));
    }
}
