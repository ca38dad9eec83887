//! State that all connections of a server share.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use axum::extract::State;
use parking_lot::Mutex;
use thermocline_engine::session::{DeviceEvent, GenerationStats, StopReason};

use super::{
    error::ApiError,
    model_library::{ModelLibrary, ModelUser},
    openai::responses::ResponseStore,
    options::ServerOptions,
    queue::RequestQueue,
    served_model::{ModelSource, ServedModel},
};
use thermocline_host::{answer_stats::AnswerStats, engine_handle::EndSignal};

/// Event of a server, reported to the caller of [`Server::start`](super::Server::start).
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// A request has arrived.
    Request,
    /// An answer is complete.
    Answered(&'a GenerationStats, &'a StopReason),
    /// The engine's device has changed; the answer goes on.
    Device(&'a DeviceEvent),
    /// A request asked for what the server cannot do, and was answered without it: method, path and
    /// what was dropped in one line.
    Dropped(&'a str),
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
    /// Requests that are being answered.
    pub busy: usize,
    /// Requests that can be answered at a time.
    pub slots: usize,
    /// Requests that wait for a slot, or for their model.
    pub waiting: usize,
    /// Reason of the latest refusal.
    pub last_error: Option<String>,
}

/// The models of a server.
#[derive(Clone)]
pub enum ServedModels {
    /// The one that is open at the moment, whatever a request names.
    Open(ModelSource),
    /// Those of a folder, of which one is open at a time.
    Library(Arc<ModelLibrary>),
}

/// The right to a model for one request. Of a library it keeps the model open until it is dropped;
/// a model that is open anyway may be closed while the request waits.
pub struct ModelLease {
    /// Name of the model.
    pub name: String,
    user: Option<ModelUser>,
}

impl ModelLease {
    /// The model, unless another one is open by now.
    pub fn model(&self, context: &ServerContext) -> Result<ServedModel, ApiError> {
        if let Some(user) = &self.user {
            return Ok(user.model().clone());
        }
        let model = context.model()?;
        if model.name == self.name { Ok(model) } else { Err(ApiError::model_not_found(&self.name, &model.name)) }
    }
}

/// The context of a server as its routes are given it.
pub type SharedContext = State<Arc<ServerContext>>;

/// Options, model source, request queue and counters of one server.
pub struct ServerContext {
    /// Options the server was started with.
    pub options: ServerOptions,
    /// Requests that wait for a slot.
    pub queue: RequestQueue,
    /// Answers that later requests may continue.
    pub responses: Arc<ResponseStore>,
    models: ServedModels,
    on_event: Box<dyn Fn(ServerEvent<'_>) + Send + Sync>,
    requests: AtomicU64,
    last_answer: Mutex<Option<AnswerStats>>,
    /// Ends of the answers that were started, as far as they go on.
    active_answers: Mutex<Vec<EndSignal>>,
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
    /// A context without requests. `on_event` is called from the server's thread and must not
    /// block.
    pub fn new(
        options: ServerOptions,
        models: ServedModels,
        on_event: impl Fn(ServerEvent<'_>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(ServerContext {
            queue: RequestQueue::new(options.max_waiting, options.parallel),
            options,
            responses: Arc::default(),
            models,
            on_event: Box::new(on_event),
            requests: AtomicU64::new(0),
            last_answer: Mutex::default(),
            active_answers: Mutex::default(),
            last_error: Mutex::default(),
        })
    }

    /// The model that is open now.
    pub fn model(&self) -> Result<ServedModel, ApiError> {
        match &self.models {
            ServedModels::Open(source) => source().map_err(ApiError::unavailable),
            ServedModels::Library(library) => library
                .loaded()
                .ok_or_else(|| ApiError::unavailable("no model is loaded; a request loads the one it names")),
        }
    }

    /// The models by name, if there are several.
    pub fn library(&self) -> Option<&Arc<ModelLibrary>> {
        match &self.models {
            ServedModels::Open(_) => None,
            ServedModels::Library(library) => Some(library),
        }
    }

    /// The model that a request names, as soon as it is this request's turn to have it loaded.
    pub async fn lease(self: &Arc<Self>, wanted: Option<&str>) -> Result<ModelLease, ApiError> {
        let Some(library) = self.library() else { return Ok(ModelLease { name: self.model()?.name, user: None }) };
        let context = Arc::clone(self);
        let user = library.acquire(wanted, move || context.queue.release_session_unless(None)).await?;
        Ok(ModelLease { name: user.model().name.clone(), user: Some(user) })
    }

    /// Records that a request has arrived.
    pub fn record_request(&self) {
        self.requests.fetch_add(1, SeqCst);
        (self.on_event)(ServerEvent::Request);
    }

    /// Records that an answer was started, which `end` waits for.
    pub fn record_start(&self, end: EndSignal) {
        let mut active = self.active_answers.lock();
        active.retain(|end| !end.is_over());
        active.push(end);
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

    /// Records what was dropped of a request: method, path and names in one line.
    pub fn record_dropped(&self, line: &str) {
        tracing::info!("{line}");
        (self.on_event)(ServerEvent::Dropped(line));
    }

    /// End of an answer that the model is generating.
    pub fn active_answer(&self) -> Option<EndSignal> {
        self.active_answers.lock().iter().rev().find(|end| !end.is_over()).cloned()
    }

    /// Current load.
    pub fn status(&self) -> ServerStatus {
        let (slots, busy) = self.queue.slots();
        ServerStatus {
            requests: self.requests.load(SeqCst),
            answering: busy > 0,
            busy,
            slots,
            waiting: self.queue.waiting() + self.library().map_or(0, |library| library.waiting()),
            last_error: self.last_error.lock().clone(),
        }
    }

    /// Figures of the latest complete answer.
    pub fn last_answer(&self) -> Option<AnswerStats> {
        self.last_answer.lock().clone()
    }
}
