//! State that all connections of a server share.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use parking_lot::Mutex;
use thermocline_engine::session::{DeviceEvent, GenerationStats, StopReason};

use super::{
    error::ApiError,
    options::ServerOptions,
    queue::RequestQueue,
    served_model::{ModelSource, ServedModel},
};
use crate::{chat::AnswerStats, engine_handle::EndSignal};

/// Event of a server, reported to the caller of [`Server::start`](super::Server::start).
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// A request has arrived.
    Request,
    /// An answer is complete.
    Answered(&'a GenerationStats, &'a StopReason),
    /// The engine's device has changed; the answer goes on.
    Device(&'a DeviceEvent),
    /// A request was refused, or its answer failed: method, path, reason and status in one line.
    Refused(&'a str),
}

/// Load of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerStatus {
    /// Requests received since the start.
    pub requests: u64,
    /// `true` while a request is being answered.
    pub answering: bool,
    /// Requests that wait for the session.
    pub waiting: usize,
    /// Reason of the latest refusal.
    pub last_error: Option<String>,
}

/// Options, model source, request queue and counters of one server.
pub struct ServerContext {
    /// Options the server was started with.
    pub options: ServerOptions,
    /// Requests that wait for the session.
    pub queue: RequestQueue,
    source: ModelSource,
    on_event: Box<dyn Fn(ServerEvent<'_>) + Send + Sync>,
    requests: AtomicU64,
    last_answer: Mutex<Option<AnswerStats>>,
    /// End of the answer that was started last.
    active_answer: Mutex<Option<EndSignal>>,
    last_error: Mutex<Option<String>>,
}

impl fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerContext")
            .field("options", &self.options)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl ServerContext {
    /// A context without requests. `on_event` is called from the server's thread and must not block.
    pub fn new(
        options: ServerOptions,
        source: ModelSource,
        on_event: impl Fn(ServerEvent<'_>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(ServerContext {
            queue: RequestQueue::new(options.max_waiting),
            options,
            source,
            on_event: Box::new(on_event),
            requests: AtomicU64::new(0),
            last_answer: Mutex::default(),
            active_answer: Mutex::default(),
            last_error: Mutex::default(),
        })
    }

    /// The model that is open now.
    pub fn model(&self) -> Result<ServedModel, ApiError> {
        (self.source)().map_err(ApiError::unavailable)
    }

    /// Records that a request has arrived.
    pub fn record_request(&self) {
        self.requests.fetch_add(1, SeqCst);
        (self.on_event)(ServerEvent::Request);
    }

    /// Records that an answer was started, which `end` waits for.
    pub fn record_start(&self, end: EndSignal) {
        *self.active_answer.lock() = Some(end);
    }

    /// Records that an answer is complete.
    pub fn record_answer(&self, stats: &GenerationStats, reason: &StopReason) {
        *self.last_answer.lock() = Some(AnswerStats::new(stats, Some(reason)));
        (self.on_event)(ServerEvent::Answered(stats, reason));
    }

    /// Records a change of the engine's device.
    pub fn record_device(&self, event: &DeviceEvent) {
        (self.on_event)(ServerEvent::Device(event));
    }

    /// Records a refusal: method, path, reason and status in one line.
    pub fn record_refusal(&self, line: String) {
        tracing::info!("{line}");
        (self.on_event)(ServerEvent::Refused(&line));
        *self.last_error.lock() = Some(line);
    }

    /// End of the answer that the model is generating.
    pub fn active_answer(&self) -> Option<EndSignal> {
        self.active_answer.lock().clone().filter(|end| !end.is_over())
    }

    /// Current load.
    pub fn status(&self) -> ServerStatus {
        ServerStatus {
            requests: self.requests.load(SeqCst),
            answering: self.queue.is_busy(),
            waiting: self.queue.waiting(),
            last_error: self.last_error.lock().clone(),
        }
    }

    /// Figures of the latest complete answer.
    pub fn last_answer(&self) -> Option<AnswerStats> {
        self.last_answer.lock().clone()
    }
}
