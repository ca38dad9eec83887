//! A caller's end of a session.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
    mpsc::Receiver,
};
use std::time::Instant;

use super::{Engine, Event, Request, outbox::Outbox, worker::Command, worker::Job};

/// One conversation. Dropping it cancels what it is doing and frees its KV cache.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    id: u64,
    context: usize,
    requests: AtomicU64,
    /// Requests with a lower number than this are cancelled.
    cancelled: Arc<AtomicU64>,
}

impl Session {
    pub(super) fn new(engine: Engine, id: u64, context: usize) -> Self {
        Session { engine, id, context, requests: AtomicU64::new(0), cancelled: Arc::default() }
    }

    pub(super) fn cancelled(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.cancelled)
    }

    /// Generates. The events end with [`Event::Done`] or [`Event::Error`]; all errors arrive there. Requests of one session
    /// run one after the other, those of several take turns token by token. Dropping the receiver cancels.
    ///
    /// What the cache already holds of the prompt is not computed again, so a conversation is continued by sending it
    /// whole. The result is the same as from an empty cache, up to float summation order.
    pub fn generate(&self, request: Request) -> Receiver<Event> {
        let (events, receiver) = Outbox::new(self.engine.stop_reason());
        let number = self.requests.fetch_add(1, SeqCst);
        // If it cannot be delivered, the outbox says so as it is dropped.
        let _ = self.engine.command(Command::Generate {
            id: self.id,
            job: Box::new(Job { number, request, events, asked: Instant::now() }),
        });
        receiver
    }

    /// Cancels everything asked of this session so far. The running generation ends within one token, or within one layer
    /// of a prompt; its events end with [`super::StopReason::Cancelled`], and the session stays usable.
    pub fn cancel(&self) {
        self.cancelled.fetch_max(self.requests.load(SeqCst), SeqCst);
        // The engine may be asleep until a device is loaded. One that has stopped has nothing left to cancel.
        let _ = self.engine.command(Command::Wake);
    }

    /// Length of its context, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The engine it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.cancelled.store(u64::MAX, SeqCst);
        // An engine that has stopped has no caches to free.
        let _ = self.engine.command(Command::Close { id: self.id });
    }
}
