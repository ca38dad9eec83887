//! The state that all connections of a server share.

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
    picture_fetch::PictureFetch,
    queue::RequestQueue,
    request_message::ReadRules,
    served_model::{ModelSource, ServedModel},
};
use thermocline_host::{answer_stats::AnswerStats, engine_handle::EndSignal};

/// An event of a server, reported to the caller of [`Server::start`](super::Server::start).
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// A request has arrived.
    Request,
    /// An answer is complete.
    Answered(&'a GenerationStats, &'a StopReason),
    /// The engine's device has changed. The answer continues.
    Device(&'a DeviceEvent),
    /// The server answered a request without something that it cannot do. The line has the method,
    /// the path and what was dropped.
    Dropped(&'a str),
    /// A request was refused, or its answer failed: method, path, reason and status in one line.
    Refused(&'a str),
}

/// Load of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerStatus {
    /// Requests received since the start.
    pub requests: u64,
    /// `true` while the server is answering a request.
    pub answering: bool,
    /// Requests that the server is answering.
    pub busy: usize,
    /// Requests that the server can answer at the same time.
    pub slots: usize,
    /// Requests that wait for a slot or for their model.
    pub waiting: usize,
    /// Reason of the latest refusal.
    pub last_error: Option<String>,
}

/// The models of a server.
#[derive(Clone)]
pub enum ServedModels {
    /// The model that is open at the moment, whatever model a request names.
    Open(ModelSource),
    /// The models of a folder, one of them open at a time.
    Library(Arc<ModelLibrary>),
}

/// A request's right to a model. A model of a library stays open until the lease is dropped. A
/// model from a [`ModelSource`] may be closed while the request waits.
pub struct ModelLease {
    /// Name of the model.
    pub name: String,
    user: Option<ModelUser>,
}

impl ModelLease {
    /// Returns the model, unless another model is open by now.
    pub fn model(&self, context: &ServerContext) -> Result<ServedModel, ApiError> {
        if let Some(user) = &self.user {
            return Ok(user.model().clone());
        }
        let model = context.model()?;
        if model.name == self.name { Ok(model) } else { Err(ApiError::model_not_found(&self.name, &model.name)) }
    }
}

/// The context of a server, as axum passes it to the routes.
pub type SharedContext = State<Arc<ServerContext>>;

/// Options, model source, request queue and counters of one server.
pub struct ServerContext {
    /// Options that the server was started with.
    pub options: ServerOptions,
    /// Requests that wait for a slot.
    pub queue: RequestQueue,
    /// Answers that later requests may continue.
    pub responses: Arc<ResponseStore>,
    models: ServedModels,
    on_event: Box<dyn Fn(ServerEvent<'_>) + Send + Sync>,
    requests: AtomicU64,
    last_answer: Mutex<Option<AnswerStats>>,
    /// End signals of the started answers that still run.
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
    /// Creates a context without requests. The server's thread calls `on_event`, which must not
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

    /// How this server reads bodies.
    pub fn rules(&self) -> ReadRules {
        let ServerOptions { strict, image_urls: addresses, timeout, .. } = self.options;
        ReadRules { strict, fetch: PictureFetch::new(addresses, timeout) }
    }

    /// Returns the model that is open now.
    pub fn model(&self) -> Result<ServedModel, ApiError> {
        match &self.models {
            ServedModels::Open(source) => source().map_err(ApiError::unavailable),
            ServedModels::Library(library) => library
                .loaded()
                .ok_or_else(|| ApiError::unavailable("no model is loaded; a request loads the model that it names")),
        }
    }

    /// Returns the library, if the server has several models.
    pub fn library(&self) -> Option<&Arc<ModelLibrary>> {
        match &self.models {
            ServedModels::Open(_) => None,
            ServedModels::Library(library) => Some(library),
        }
    }

    /// True if the model that a request names has a vision tower, or may have one because it is not
    /// loaded.
    ///
    /// # Errors
    /// 404 for an unknown name, 503 without a model.
    pub async fn may_see(&self, wanted: Option<String>) -> Result<bool, ApiError> {
        let sees = |model: ServedModel| model.engine.tower().is_some();
        let Some(library) = self.library().cloned() else { return Ok(sees(self.model()?)) };
        let found = tokio::task::spawn_blocking(move || {
            let entry = library.find(wanted.as_deref())?;
            Ok(library.loaded().filter(|model| model.name == entry.name).is_none_or(sees))
        });
        found.await.unwrap_or_else(|_| Err(ApiError::unavailable("the folder could not be read")))
    }

    /// Waits for the request's turn, then loads the model that it names.
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

    /// Records that an answer was started. `end` waits for its end.
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

    /// Records a refusal. `line` has the method, path, reason and status.
    pub fn record_refusal(&self, line: String) {
        tracing::info!("{line}");
        (self.on_event)(ServerEvent::Refused(&line));
        *self.last_error.lock() = Some(line);
    }

    /// Records what was dropped from a request. `line` has the method, path and names.
    pub fn record_dropped(&self, line: &str) {
        tracing::info!("{line}");
        (self.on_event)(ServerEvent::Dropped(line));
    }

    /// Returns the end signal of an answer that the model is generating.
    pub fn active_answer(&self) -> Option<EndSignal> {
        self.active_answers.lock().iter().rev().find(|end| !end.is_over()).cloned()
    }

    /// Returns the current load.
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

    /// Statistics of the latest complete answer.
    pub fn last_answer(&self) -> Option<AnswerStats> {
        self.last_answer.lock().clone()
    }
}
