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

/// A model being opened.
#[derive(Debug, Clone)]
pub struct ModelOpening {
    /// The model.
    pub model: ModelId,
    /// Time at which opening started.
    pub since: Instant,
}

/// State of the open model.
#[derive(Debug, Clone)]
pub enum ModelState {
    /// No model is open.
    Empty,
    /// A model is being opened. Loading it into a device follows after it is ready; see [`Engine::device`].
    Opening(ModelOpening),
    /// A model is open.
    Ready {
        /// The model.
        model: ModelId,
        /// Its engine.
        engine: Engine,
    },
    /// A model of a server is open: the server computes it.
    Remote {
        /// The model.
        model: RemoteModel,
        /// The client that asks for answers.
        client: RemoteClient,
    },
    /// No model is open: this one failed.
    Failed {
        /// The model.
        model: ModelId,
        /// The event that ended it.
        failure: ModelFailure,
        /// The reason in sentences.
        reason: String,
    },
}

impl ModelState {
    /// The model that is open, is being opened, or could not be opened.
    pub fn model(&self) -> Option<ModelId> {
        match self {
            ModelState::Empty => None,
            ModelState::Opening(opening) => Some(opening.model.clone()),
            ModelState::Ready { model, .. } | ModelState::Failed { model, .. } => Some(model.clone()),
            ModelState::Remote { model, .. } => Some(ModelId::Remote(model.clone())),
        }
    }
}

/// The event that ended a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFailure {
    /// It could not be opened.
    NotOpened,
    /// It was open, and its engine has stopped.
    Closed,
}

impl ModelFailure {
    /// The words of the button that opens the model once more.
    pub fn remedy(self) -> &'static str {
        match self {
            ModelFailure::NotOpened => "Try again",
            ModelFailure::Closed => "Open the model again",
        }
    }
}

impl fmt::Display for ModelFailure {
    /// The sentence behind the model's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelFailure::NotOpened => "could not be opened",
            ModelFailure::Closed => "was closed",
        })
    }
}

/// Handle on at most one open model.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<SharedState>,
}

struct SharedState {
    state: Mutex<ModelState>,
    /// Number of the latest call to open or close: the result of an earlier one is dropped.
    latest_call: AtomicU64,
    /// `true` while other work of the program uses the CPU.
    busy: Arc<AtomicBool>,
    notify: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// A handle without a model. `notify` is called, from any thread, when the state has changed or an answer has an update.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        let (state, latest_call) = (Mutex::new(ModelState::Empty), AtomicU64::new(0));
        let busy = Arc::default();
        EngineHandle { shared: Arc::new(SharedState { state, latest_call, busy, notify: Box::new(notify) }) }
    }

    /// Current state. A model whose engine has stopped is closed.
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

    /// Engine of the open model.
    pub fn engine(&self) -> Option<Engine> {
        match self.state() {
            ModelState::Ready { engine, .. } => Some(engine),
            _ => None,
        }
    }

    /// Opens a model in place of the open one.
    pub fn open(&self, model: ModelId, options: EngineOptions) {
        self.begin(model.clone(), move |handle| {
            let load = LoadOptions { read_mode: options.read_mode, activation: options.activation };
            let mut options = options;
            let (measure, flag) = (options.speeds.is_some(), Arc::clone(&handle.shared.busy));
            let busy = move || flag.load(SeqCst);
            let open = || {
                let mut opened = model.open(&load)?;
                // What `prepare` found may be gone by now.
                if let Some(level) = options.level.take().filter(|_| opened.has_input_thresholds()) {
                    let copies = opened.skip_inputs(level)?;
                    if let Err(available) = memory::check(copies.bytes) {
                        let what = "copies of the weights, input by input";
                        return Err(Error::memory(ScarceMemory::Ram, what, copies.bytes, available));
                    }
                }
                let engine = Engine::from_model(opened, options)?;
                // Without the calibration speeds stay unknown until an answer shows them.
                if measure && let Err(error) = engine.measure_when_idle(CalibrationOptions::default(), busy) {
                    tracing::warn!(%error, "the machine is not measured");
                }
                Ok::<_, Error>(engine)
            };
            match catch_unwind(AssertUnwindSafe(open)) {
                Ok(Ok(engine)) => ModelState::Ready { model, engine },
                Ok(Err(error)) => {
                    tracing::warn!(%error, %model, "a model could not be opened");
                    not_opened(model, error_message(&error))
                }
                Err(_) => not_opened(model, "Opening it failed inside: this is a bug.".to_owned()),
            }
        });
    }

    /// Opens a model of a server in place of the open one: looks for it in the server's list. The key is looked up in `keys`, which may
    /// wait for the user.
    pub fn open_remote(&self, model: RemoteModel, keys: KeyStore) {
        let id = ModelId::Remote(model.clone());
        self.begin(id.clone(), move |_| match find(&model, &keys) {
            Ok(client) => ModelState::Remote { model, client },
            Err(reason) => not_opened(id, reason),
        });
    }

    /// Has a thread `open` a model. The open one is closed first: two might not fit into memory.
    fn begin(&self, model: ModelId, open: impl FnOnce(&Self) -> ModelState + Send + 'static) {
        let number = self.shared.latest_call.fetch_add(1, SeqCst) + 1;
        let opening = ModelState::Opening(ModelOpening { model: model.clone(), since: Instant::now() });
        let before = std::mem::replace(&mut *self.shared.state.lock(), opening);
        self.notify();
        let handle = self.clone();
        let work = move || {
            // Waits for the end of the engine's thread.
            drop(before);
            let state = open(&handle);
            handle.set_state(number, state);
        };
        if let Err(error) = thread::Builder::new().name("open-model".to_owned()).spawn(work) {
            self.set_state(number, not_opened(model, format!("no thread to open it with: {error}")));
        }
    }

    /// Closes the model, or cancels opening one.
    pub fn close(&self) {
        self.shared.latest_call.fetch_add(1, SeqCst);
        let before = std::mem::replace(&mut *self.shared.state.lock(), ModelState::Empty);
        self.notify();
        drop_in_background(before);
    }

    /// Tells whether other work of the program uses the CPU: speeds are not measured meanwhile.
    pub fn set_busy(&self, busy: bool) {
        self.shared.busy.store(busy, SeqCst);
    }

    /// A session of the open model.
    ///
    /// # Errors
    /// [`Error::Stopped`] if no model is open; the engine's error.
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

/// Another thread waits for the end of the engine's thread. If there is none, this one does.
fn drop_in_background(before: ModelState) {
    let _ = thread::Builder::new().name("close-model".to_owned()).spawn(move || drop(before));
}

/// A client of the model's server, which must have it. The error is a sentence.
fn find(model: &RemoteModel, keys: &KeyStore) -> Result<RemoteClient, String> {
    let key = keys.get(&model.server).map_err(|error| error.to_string())?;
    let client = RemoteClient::new(model.server.clone(), key, RemoteTimeouts::default());
    match client.models() {
        Ok(models) if models.contains(&model.name) => Ok(client),
        Ok(models) => {
            let some = models.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let server = model.server.host();
            Err(format!("{server} has no model {}; it has {} others: {some}", model.name, models.len()))
        }
        // Servers of one model that do not list it.
        Err(RemoteError::Status { status: 404 | 405, .. }) => Ok(client),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
        // Threads that open a model have a handle each.
        eventually("the end of every thread that opens one", || Arc::strong_count(&handle.shared) == 1);
        assert!(matches!(handle.state(), ModelState::Empty));
    }

    /// A file that shrinks in mid-answer fails the answer and closes the model with a reason; another model opens.
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
