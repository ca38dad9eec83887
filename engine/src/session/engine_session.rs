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
    Engine, Event, Prompt, Request, StateReading,
    request::EventSender,
    worker::{EngineCommand, QueuedRequest},
};
use thermocline_base::error::Result;

/// One conversation with its own KV cache. Dropping it cancels its requests and frees the cache.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    id: u64,
    context: usize,
    requests: AtomicU64,
    /// Requests with a number below this one are cancelled.
    cancelled: Arc<AtomicU64>,
}

impl Session {
    pub(super) fn new(engine: Engine, id: u64, context: usize) -> Self {
        Session { engine, id, context, requests: AtomicU64::new(0), cancelled: Arc::default() }
    }

    pub(super) fn cancelled(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.cancelled)
    }

    /// Generates an answer. The events end with [`Event::Done`] or [`Event::Error`], and every
    /// error arrives as an event. Requests of one session run one after the other; several sessions
    /// take turns token by token. Dropping the receiver cancels the request.
    ///
    /// Tokens of the prompt that the cache already holds are not computed again, so a conversation
    /// is continued by sending it whole. The result equals a result from an empty cache, up to the
    /// order of float sums.
    pub fn generate(&self, request: Request) -> Receiver<Event> {
        let (events, receiver) = EventSender::new(self.engine.stop_cell());
        let number = self.requests.fetch_add(1, SeqCst);
        // If the command cannot be delivered, dropping its event sender reports the error.
        let _ = self.engine.command(EngineCommand::Generate {
            id: self.id,
            request: Box::new(QueuedRequest { number, request, events, requested_at: Instant::now() }),
        });
        receiver
    }

    /// Computes what `reading` wants of `prompt`, and waits for it: the embedding, or the relevance
    /// of a pair as one number.
    ///
    /// # Errors
    /// `Unsupported` if the model has no classifier for a relevance, `ContextFull` for
    /// a text of more tokens than the context has, and the errors of generations.
    pub fn read_states(&self, prompt: Prompt, reading: StateReading) -> Result<Vec<f32>> {
        let mut answer = Vec::new();
        for event in self.generate(Request { reading: Some(reading), ..Request::new(prompt) }) {
            match event {
                Event::Embedding(embedding) => answer = embedding,
                Event::Error(error) => return Err(error),
                _ => {}
            }
        }
        Ok(answer)
    }

    /// Cancels all previous requests of this session. The running generation ends within one token,
    /// or within one layer of a prompt. Its events end with
    /// [`StopReason::Cancelled`](super::StopReason::Cancelled), and the session stays usable.
    pub fn cancel(&self) {
        self.cancelled.fetch_max(self.requests.load(SeqCst), SeqCst);
        // The engine may be asleep until a device is loaded. A stopped engine has nothing left to
        // cancel.
        let _ = self.engine.command(EngineCommand::Wake);
    }

    /// Number of the session. The neuron board distinguishes sessions by it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Length of the session's context, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The engine of the session.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.cancelled.store(u64::MAX, SeqCst);
        // A stopped engine has no caches to free.
        let _ = self.engine.command(EngineCommand::Close { id: self.id });
    }
}
