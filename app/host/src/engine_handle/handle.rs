//! The open model.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use parking_lot::Mutex;
use thermocline_engine::{
    Error, ScarceMemory,
    model::LoadOptions,
    session::{CalibrationOptions, Engine, EngineOptions, Session, SessionOptions},
};

use super::error_message;
use crate::{
    library::ModelId,
    memory,
    remote::{KeyStore, RemoteClient, RemoteError, RemoteModel, RemoteTimeouts},
};

/// A model that is being opened.
#[derive(Debug, Clone)]
pub struct ModelOpening {
    /// The model.
    pub model: ModelId,
    /// Time when opening started.
    pub since: Instant,
}

/// State of the open model.
#[derive(Debug, Clone)]
pub enum ModelState {
    /// No model is open.
    Empty,
    /// A model is being opened. When it is ready, it may still be loading into a device; see
    /// [`Engine::device`].
    Opening(ModelOpening),
    /// A model is open.
    Ready {
        /// The model.
        model: ModelId,
        /// Engine of the model.
        engine: Engine,
    },
    /// A model of a server is open. The server computes its answers.
    Remote {
        /// The model.
        model: RemoteModel,
        /// Client of the server.
        client: RemoteClient,
    },
    /// No model is open. This model failed.
    Failed {
        /// The model.
        model: ModelId,
        /// When the model failed.
        failure: ModelFailure,
        /// Reason of the failure in sentences.
        reason: String,
    },
}

impl ModelState {
    /// Returns the model that is open, is being opened, or could not be opened.
    pub fn model(&self) -> Option<ModelId> {
        match self {
            ModelState::Empty => None,
            ModelState::Opening(opening) => Some(opening.model.clone()),
            ModelState::Ready { model, .. } | ModelState::Failed { model, .. } => Some(model.clone()),
            ModelState::Remote { model, .. } => Some(ModelId::Remote(model.clone())),
        }
    }
}

/// When a model failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFailure {
    /// The model could not be opened.
    NotOpened,
    /// The model was open, but its engine has stopped.
    Closed,
}

impl ModelFailure {
    /// Returns the label of the button that opens the model again.
    pub fn remedy(self) -> &'static str {
        match self {
            ModelFailure::NotOpened => "Try again",
            ModelFailure::Closed => "Open the model again",
        }
    }
}

impl fmt::Display for ModelFailure {
    /// Writes the sentence that follows the model's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelFailure::NotOpened => "could not be opened",
            ModelFailure::Closed => "was closed",
        })
    }
}

/// Handle of at most one open model.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<SharedState>,
}

struct SharedState {
    state: Mutex<ModelState>,
    /// Number of the latest call that opens or closes a model. The result of an earlier call is
    /// dropped.
    latest_call: AtomicU64,
    /// Why the latest call opened its model without its draft model.
    draft_failure: Mutex<Option<DraftFailure>>,
    /// `true` while the program uses the CPU for something else.
    busy: Arc<AtomicBool>,
    notify: Box<dyn Fn() + Send + Sync>,
}

/// The reason why a draft model could not be used.
struct DraftFailure {
    /// Number of the call that opened the model.
    call: u64,
    /// Reason in sentences.
    reason: String,
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// Creates a handle without a model. Any thread may call `notify`, when the state has changed
    /// or an answer has an update.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        let (state, latest_call) = (Mutex::new(ModelState::Empty), AtomicU64::new(0));
        let busy = Arc::default();
        let (draft_failure, notify) = (Mutex::default(), Box::new(notify));
        EngineHandle { shared: Arc::new(SharedState { state, latest_call, draft_failure, busy, notify }) }
    }

    /// Returns the current state. Closes a model whose engine has stopped.
    pub fn state(&self) -> ModelState {
        let mut now = self.shared.state.lock();
        if let ModelState::Ready { model, engine } = &*now
            && let Some(error) = engine.stopped()
        {
            let (model, reason) = (model.clone(), error_message(&error));
            let closed = ModelState::Failed { model, failure: ModelFailure::Closed, reason };
            drop_in_background(std::mem::replace(&mut *now, closed));
        }
        now.clone()
    }

    /// Returns the engine of the open model.
    pub fn engine(&self) -> Option<Engine> {
        match self.state() {
            ModelState::Ready { engine, .. } => Some(engine),
            _ => None,
        }
    }

    /// Opens a model in place of the current one. If its draft model cannot be used, the model is
    /// opened without it, and [`EngineHandle::draft_failure`] says why.
    pub fn open(&self, model: ModelId, options: EngineOptions) {
        self.begin(model.clone(), move |handle, call| {
            let open = || {
                let without = options.draft.is_some().then(|| EngineOptions { draft: None, ..options.clone() });
                match (handle.open_engine(&model, options), without) {
                    (Err(error), Some(without)) => {
                        let engine = handle.open_engine(&model, without)?;
                        // The model opens without its draft model, so that this one is the cause.
                        handle.set_draft_failure(call, &error);
                        Ok(engine)
                    }
                    (opened, _) => opened,
                }
            };
            match catch_unwind(AssertUnwindSafe(open)) {
                Ok(Ok(engine)) => ModelState::Ready { model, engine },
                Ok(Err(error)) => {
                    tracing::warn!(%error, %model, "a model could not be opened");
                    not_opened(model, error_message(&error))
                }
                Err(_) => not_opened(model, "Opening the model failed because of a bug in Thermocline.".to_owned()),
            }
        });
    }

    /// Opens a model of this computer.
    fn open_engine(&self, model: &ModelId, mut options: EngineOptions) -> Result<Engine, Error> {
        let load = LoadOptions { read_mode: options.read_mode, activation: options.activation };
        let (measure, flag) = (options.speeds.is_some(), Arc::clone(&self.shared.busy));
        let busy = move || flag.load(SeqCst);
        let mut opened = model.open(&load)?;
        options.ram = options.ram.or_else(|| memory::limit_for(opened.checkpoint.tensor_bytes()));
        // The thresholds that `prepare` found may have been removed.
        if let Some(level) = options.level.take().filter(|_| opened.has_input_thresholds()) {
            let copies = opened.skip_inputs(level)?;
            if let Err(available) = memory::check(copies.bytes) {
                let what = "copies of the weights to skip small inputs";
                return Err(Error::memory(ScarceMemory::Ram, what, copies.bytes, available));
            }
        }
        let engine = Engine::from_model(opened, options)?;
        // If the calibration fails, speeds are unknown until an answer measures them.
        let calibration = CalibrationOptions { effort: memory::measure_effort(), ..CalibrationOptions::default() };
        if measure && let Err(error) = engine.measure_when_idle(calibration, busy) {
            tracing::warn!(%error, "this machine could not be measured");
        }
        Ok(engine)
    }

    /// Keeps the reason why call `call` opened its model without its draft model, unless it is no
    /// longer the latest.
    fn set_draft_failure(&self, call: u64, error: &Error) {
        tracing::warn!(%error, "a draft model is not used");
        let mut failure = self.shared.draft_failure.lock();
        if self.shared.latest_call.load(SeqCst) == call {
            *failure = Some(DraftFailure { call, reason: error_message(error) });
        }
    }

    /// Returns why the open model has no draft model although one was chosen.
    pub fn draft_failure(&self) -> Option<String> {
        let latest = self.shared.latest_call.load(SeqCst);
        let failure = self.shared.draft_failure.lock();
        failure.as_ref().filter(|failure| failure.call == latest).map(|failure| failure.reason.clone())
    }

    /// Opens a model of a server in place of the current one, if the server lists it. Looking up
    /// the key in `keys` may wait for the user.
    pub fn open_remote(&self, model: RemoteModel, keys: KeyStore) {
        let id = ModelId::Remote(model.clone());
        self.begin(id.clone(), move |_, _| match find(&model, &keys) {
            Ok(client) => ModelState::Remote { model, client },
            Err(reason) => not_opened(id, reason),
        });
    }

    /// Runs `open` on a thread, with the number of this call. It closes the current model first,
    /// because two models might not fit into memory.
    fn begin(&self, model: ModelId, open: impl FnOnce(&Self, u64) -> ModelState + Send + 'static) {
        let number = self.shared.latest_call.fetch_add(1, SeqCst) + 1;
        let opening = ModelState::Opening(ModelOpening { model: model.clone(), since: Instant::now() });
        let before = std::mem::replace(&mut *self.shared.state.lock(), opening);
        self.notify();
        let handle = self.clone();
        let work = move || {
            // This waits until the engine's thread has ended.
            drop(before);
            let state = open(&handle, number);
            handle.set_state(number, state);
        };
        if let Err(error) = thread::Builder::new().name("open-model".to_owned()).spawn(work) {
            self.set_state(number, not_opened(model, format!("opening the model could not start: {error}")));
        }
    }

    /// Closes the model, or cancels opening one.
    pub fn close(&self) {
        self.shared.latest_call.fetch_add(1, SeqCst);
        let before = std::mem::replace(&mut *self.shared.state.lock(), ModelState::Empty);
        self.notify();
        drop_in_background(before);
    }

    /// Sets whether the program uses the CPU for something else. Speeds are not measured then.
    pub fn set_busy(&self, busy: bool) {
        self.shared.busy.store(busy, SeqCst);
    }

    /// Opens a session of the open model.
    ///
    /// # Errors
    /// [`Error::Stopped`] if no model is open, or the engine's error.
    pub fn session(&self, options: SessionOptions) -> Result<Session, Error> {
        let engine = self.engine().ok_or_else(|| Error::Stopped("no model is open".to_owned()))?;
        engine.session(options)
    }

    /// Sets the state, unless call `number` is no longer the latest.
    fn set_state(&self, number: u64, state: ModelState) {
        let mut now = self.shared.state.lock();
        if self.shared.latest_call.load(SeqCst) == number {
            *now = state;
        }
        drop(now);
        self.notify();
    }

    /// Notifies the window.
    pub fn notify(&self) {
        (self.shared.notify)();
    }
}

fn not_opened(model: ModelId, reason: String) -> ModelState {
    ModelState::Failed { model, failure: ModelFailure::NotOpened, reason }
}

/// Drops the state on another thread, which waits for the engine's thread to end. If no thread can
/// start, this thread waits.
fn drop_in_background(before: ModelState) {
    let _ = thread::Builder::new().name("close-model".to_owned()).spawn(move || drop(before));
}

/// Creates a client of the model's server, which must list the model. The error is a sentence.
fn find(model: &RemoteModel, keys: &KeyStore) -> Result<RemoteClient, String> {
    let key = keys.get(&model.server).map_err(|error| error.to_string())?;
    let client = RemoteClient::new(model.server.clone(), key, RemoteTimeouts::default());
    match client.models() {
        Ok(models) if models.contains(&model.name) => Ok(client),
        Ok(models) => {
            let some = models.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let server = model.server.host();
            Err(format!("{server} has no model {}. It has {} other models: {some}", model.name, models.len()))
        }
        // Some servers with a single model do not list it.
        Err(RemoteError::Status { status: 404 | 405, .. }) => Ok(client),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use thermocline_engine::{
        format::survive_lost_files,
        session::{ContextPolicy, Prompt, Request, Sampling},
    };

    use super::*;
    use crate::{
        engine_handle::{Answer, AnswerEnd},
        testing::{eventually, until},
    };

    fn wait(handle: &EngineHandle, what: &str, is: impl Fn(&ModelState) -> bool) -> ModelState {
        until(what, || Some(handle.state()).filter(&is))
    }

    #[test]
    fn engine_handle_follows_the_latest_call_and_failures_have_a_reason() {
        let handle = EngineHandle::new(|| ());
        for _ in 0..5 {
            handle.open(ModelId::Builtin, EngineOptions::default());
        }
        handle.open(ModelId::Path(PathBuf::from("/nowhere.gguf")), EngineOptions::default());
        let state = wait(&handle, "a failure", |state| matches!(state, ModelState::Failed { .. }));
        assert!(matches!(&state, ModelState::Failed { reason, .. } if reason.contains("nowhere.gguf")), "{state:?}");
        assert!(handle.engine().is_none() && handle.session(SessionOptions::default()).is_err());
        handle.open(ModelId::Builtin, EngineOptions::default());
        wait(&handle, "the model", |state| matches!(state, ModelState::Ready { model: ModelId::Builtin, .. }));
        assert!(handle.session(SessionOptions::default()).is_ok());
        handle.open(ModelId::Builtin, EngineOptions::default());
        handle.close();
        // Each thread that opens a model holds a handle.
        eventually("the end of every thread that opens one", || Arc::strong_count(&handle.shared) == 1);
        assert!(matches!(handle.state(), ModelState::Empty));
    }

    #[test]
    fn model_is_opened_without_a_draft_model_that_does_not_fit() {
        let draft = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama-relu");
        let handle = EngineHandle::new(|| ());
        let ready = |state: &ModelState| matches!(state, ModelState::Ready { .. });
        handle.open(ModelId::Builtin, EngineOptions { draft: Some(draft), ..EngineOptions::default() });
        wait(&handle, "the model", ready);
        let reason = handle.draft_failure().unwrap();
        assert!(reason.contains("in which token ") && reason.contains("llama-relu"), "{reason}");
        assert!(handle.engine().unwrap().draft_model().is_none());
        handle.open(ModelId::Builtin, EngineOptions::default());
        assert_eq!(handle.draft_failure(), None);
        wait(&handle, "the model", ready);
        let nowhere = EngineOptions { draft: Some("/gone.gguf".into()), ..EngineOptions::default() };
        handle.open(ModelId::Path(PathBuf::from("/nowhere.gguf")), nowhere);
        let state = wait(&handle, "a failure", |state| matches!(state, ModelState::Failed { .. }));
        assert!(matches!(&state, ModelState::Failed { reason, .. } if reason.contains("nowhere.gguf")), "{state:?}");
    }

    /// A file that shrinks during an answer fails the answer and closes the model with a reason.
    /// Another model can be opened.
    #[test]
    #[cfg(unix)]
    fn model_whose_file_shrinks_is_closed_with_a_reason() {
        survive_lost_files();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("story.gguf");
        std::fs::write(&path, crate::builtin::file()).unwrap();
        let handle = EngineHandle::new(|| ());
        handle.open(ModelId::Path(path.clone()), EngineOptions::default());
        wait(&handle, "the model", |state| matches!(state, ModelState::Ready { .. }));
        let session = Arc::new(handle.session(SessionOptions::default()).unwrap());
        let endless = Request {
            sampling: Sampling::greedy(),
            ignore_eos: true,
            on_full: ContextPolicy::Shift { keep: 1 },
            ..Request::new(Prompt::Text("Once upon a time".to_owned()))
        };
        let answer = Answer::start(|| (), session, endless);
        eventually("a token", || !answer.take_update().tokens.is_empty());
        std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).unwrap();
        let end = until("the end of the answer", || answer.take_update().end);
        assert!(matches!(&end, AnswerEnd::Failed(Error::FileLost { path: lost }) if *lost == path), "{end:?}");
        let ModelState::Failed { failure: ModelFailure::Closed, reason, .. } = handle.state() else {
            panic!("{handle:?}")
        };
        assert!(reason.contains("story.gguf was changed while it was open"), "{reason}");
        assert!(handle.engine().is_none());
        handle.open(ModelId::Builtin, EngineOptions::default());
        wait(&handle, "another model", |state| matches!(state, ModelState::Ready { .. }));
    }
}
