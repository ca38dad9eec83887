//! The conversations of an engine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::Receiver,
    },
    time::Instant,
};

use super::{
    Engine, Event, Request,
    request::EventSender,
    worker::{EngineCommand, QueuedRequest},
};

/// One conversation with its own KV cache. Dropping it cancels its requests and frees the cache.
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

    /// Generates an answer. The events end with [`Event::Done`] or [`Event::Error`]; all errors arrive there. Requests of one session
    /// run one after the other, those of several take turns token by token. Dropping the receiver cancels.
    ///
    /// Tokens of the prompt that the cache already holds are not computed again, so a conversation is continued by sending it whole. The result is the same as from an empty cache, up to float summation order.
    pub fn generate(&self, request: Request) -> Receiver<Event> {
        let (events, receiver) = EventSender::new(self.engine.stop_cell());
        let number = self.requests.fetch_add(1, SeqCst);
        // If it cannot be delivered, the event sender says so as it is dropped.
        let _ = self.engine.command(EngineCommand::Generate {
            id: self.id,
            request: Box::new(QueuedRequest { number, request, events, requested_at: Instant::now() }),
        });
        receiver
    }

    /// Cancels all requests of this session so far. The running generation ends within one token, or within one layer
    /// of a prompt; its events end with [`StopReason::Cancelled`](super::StopReason::Cancelled), and the session stays usable.
    pub fn cancel(&self) {
        self.cancelled.fetch_max(self.requests.load(SeqCst), SeqCst);
        // The engine may be asleep until a device is loaded. One that has stopped has nothing left to cancel.
        let _ = self.engine.command(EngineCommand::Wake);
    }

    /// Its number, by which the board of neurons tells sessions apart.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Length of its context, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.cancelled.store(u64::MAX, SeqCst);
        // An engine that has stopped has no caches to free.
        let _ = self.engine.command(EngineCommand::Close { id: self.id });
    }
}
