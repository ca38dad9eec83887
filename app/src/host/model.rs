//! Which model is open.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use thermocline_engine::{
    Error,
    model::LoadOptions,
    session::{Engine, EngineOptions, Session, SessionOptions, SurveyOptions},
};

use super::reason;
use crate::library::ModelId;

/// What is being opened.
#[derive(Debug, Clone)]
pub struct Opening {
    /// Which model.
    pub model: ModelId,
    /// Since when.
    pub since: Instant,
}

/// What there is to talk to.
#[derive(Debug, Clone)]
pub enum HostState {
    /// Nothing.
    Empty,
    /// Soon, a model. Loading it into a device comes after it is ready, and is told by [`Engine::device`].
    Opening(Opening),
    /// A model.
    Ready {
        /// Which.
        model: ModelId,
        /// It.
        engine: Engine,
    },
    /// Nothing, because opening failed.
    Failed {
        /// Which model.
        model: ModelId,
        /// Why, in sentences.
        reason: String,
    },
}

/// Holds at most one model.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<HostState>,
    /// Counts what was asked for: what is not the latest any more is dropped when it is ready.
    asked: AtomicU64,
    /// Whether other work of the program wants the processors.
    working: Arc<AtomicBool>,
    notify: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Host {
    /// Nothing open. `notify` is called, from any thread, whenever the state has changed or an answer has news.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        let (state, asked) = (Mutex::new(HostState::Empty), AtomicU64::new(0));
        let working = Arc::default();
        Host { shared: Arc::new(Shared { state, asked, working, notify: Box::new(notify) }) }
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is now.
    pub fn state(&self) -> HostState {
        self.lock().clone()
    }

    /// The model that is ready.
    pub fn engine(&self) -> Option<Engine> {
        match &*self.lock() {
            HostState::Ready { engine, .. } => Some(engine.clone()),
            _ => None,
        }
    }

    /// Opens a model in place of the one that is open, which is closed first: two might not fit side by side.
    pub fn open(&self, model: ModelId, options: EngineOptions) {
        let number = self.shared.asked.fetch_add(1, SeqCst) + 1;
        let opening = HostState::Opening(Opening { model: model.clone(), since: Instant::now() });
        let before = std::mem::replace(&mut *self.lock(), opening);
        self.notify();
        let host = self.clone();
        let work = move || {
            // Waits until the engine's thread has put down its work.
            drop(before);
            let load = LoadOptions { read_mode: options.read_mode, activation: options.activation };
            let (measure, working) = (options.speeds.is_some(), Arc::clone(&host.shared.working));
            let busy = move || working.load(SeqCst);
            let open = || {
                let engine = Engine::from_model(model.open(&load)?, options)?;
                // Without it speeds stay unknown until an answer shows them.
                if measure && let Err(error) = engine.measure_when_idle(SurveyOptions::default(), busy) {
                    tracing::warn!(%error, "the machine is not measured");
                }
                Ok::<_, Error>(engine)
            };
            let state = match catch_unwind(AssertUnwindSafe(open)) {
                Ok(Ok(engine)) => HostState::Ready { model, engine },
                Ok(Err(error)) => HostState::Failed { model, reason: reason(&error) },
                Err(_) => HostState::Failed { model, reason: "opening it failed inside: this is a bug".to_owned() },
            };
            host.become_state(number, state);
        };
        if let Err(error) = thread::Builder::new().name("open-model".to_owned()).spawn(work) {
            let reason = format!("no thread to open it: {error}");
            let model = match self.state() {
                HostState::Opening(Opening { model, .. }) => model,
                _ => return,
            };
            self.become_state(number, HostState::Failed { model, reason });
        }
    }

    /// Closes the model, or gives up opening one.
    pub fn close(&self) {
        self.shared.asked.fetch_add(1, SeqCst);
        let before = std::mem::replace(&mut *self.lock(), HostState::Empty);
        self.notify();
        // Somebody else waits for the engine's thread. Without a thread for it, this one does.
        let _ = thread::Builder::new().name("close-model".to_owned()).spawn(move || drop(before));
    }

    /// Other work of the program wants the processors, or not any more: how fast they are is not found out meanwhile.
    pub fn set_working(&self, working: bool) {
        self.shared.working.store(working, SeqCst);
    }

    /// A conversation with the model that is ready.
    ///
    /// # Errors
    /// [`Error::Stopped`] if there is none; what the engine says.
    pub fn session(&self, options: SessionOptions) -> Result<Session, Error> {
        let engine = self.engine().ok_or_else(|| Error::Stopped("no model is open".to_owned()))?;
        engine.session(options)
    }

    /// Sets the state, if nobody has asked for another meanwhile.
    fn become_state(&self, number: u64, state: HostState) {
        let mut now = self.lock();
        if self.shared.asked.load(SeqCst) == number {
            *now = state;
        }
        drop(now);
        self.notify();
    }

    /// Tells the window to look.
    pub fn notify(&self) {
        (self.shared.notify)();
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use super::*;

    fn wait(host: &Host, what: &str, is: impl Fn(&HostState) -> bool) -> HostState {
        let began = Instant::now();
        while !is(&host.state()) {
            assert!(began.elapsed() < Duration::from_secs(30), "not within 30 s: {what}: {host:?}");
            thread::sleep(Duration::from_millis(2));
        }
        host.state()
    }

    #[test]
    fn only_the_latest_wish_counts_and_a_failure_is_a_reason() {
        let host = Host::new(|| ());
        for _ in 0..5 {
            host.open(ModelId::Builtin, EngineOptions::default());
        }
        host.open(ModelId::Path(PathBuf::from("/nowhere.gguf")), EngineOptions::default());
        let state = wait(&host, "a failure", |state| matches!(state, HostState::Failed { .. }));
        assert!(matches!(&state, HostState::Failed { reason, .. } if reason.contains("nowhere.gguf")), "{state:?}");
        assert!(host.engine().is_none() && host.session(SessionOptions::default()).is_err());
        host.open(ModelId::Builtin, EngineOptions::default());
        wait(&host, "the model", |state| matches!(state, HostState::Ready { model: ModelId::Builtin, .. }));
        assert!(host.session(SessionOptions::default()).is_ok());
        host.open(ModelId::Builtin, EngineOptions::default());
        host.close();
        thread::sleep(Duration::from_millis(300));
        assert!(matches!(host.state(), HostState::Empty));
    }
}
