//! Whose turn it is. One request is answered at a time, in the order they came, by one session: what it has read for the one
//! before need not be read again where the next begins alike.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use thermocline_engine::{
    Error,
    session::{Engine, Session, SessionOptions},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// The requests that wait, and the session.
#[derive(Debug)]
pub struct Queue {
    turn: Arc<Semaphore>,
    waiting: AtomicUsize,
    most: usize,
    session: Mutex<Option<Arc<Session>>>,
}

/// The right to the session, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// One that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Whether `session` is of `engine`.
fn is_of(session: &Session, engine: &Engine) -> bool {
    Arc::ptr_eq(session.engine().model(), engine.model())
}

impl Queue {
    /// For at most so many that wait.
    pub fn new(most: usize) -> Self {
        Queue { turn: Arc::new(Semaphore::new(1)), waiting: AtomicUsize::new(0), most, session: Mutex::default() }
    }

    /// Waits for a turn. Whoever stops waiting for this leaves the queue.
    pub async fn turn(&self) -> Result<Turn, ApiError> {
        if let Ok(permit) = Arc::clone(&self.turn).try_acquire_owned() {
            return Ok(Turn { _permit: permit });
        }
        let _waiting = self.wait()?;
        match Arc::clone(&self.turn).acquire_owned().await {
            Ok(permit) => Ok(Turn { _permit: permit }),
            Err(_) => Err(ApiError::unavailable("the server is being stopped")),
        }
    }

    fn wait(&self) -> Result<Waiting<'_>, ApiError> {
        let enter = |waiting| (waiting < self.most).then_some(waiting + 1);
        let entered = self.waiting.fetch_update(SeqCst, SeqCst, enter);
        entered.map(|_| Waiting(&self.waiting)).map_err(ApiError::busy)
    }

    /// The session, of `engine`: whoever asks has the turn.
    pub fn session(&self, engine: &Engine) -> Result<Arc<Session>, Error> {
        let mut session = self.lock();
        if let Some(session) = session.as_ref().filter(|it| is_of(it, engine)) {
            return Ok(Arc::clone(session));
        }
        // The old one first, so that there is room for the new.
        *session = None;
        Ok(Arc::clone(session.insert(Arc::new(engine.session(SessionOptions::default())?))))
    }

    /// Lets go of the session and ends what it is doing, unless it is of `engine`.
    pub fn leave_unless(&self, engine: Option<&Engine>) {
        let mut session = self.lock();
        if session.as_ref().is_some_and(|it| !engine.is_some_and(|engine| is_of(it, engine)))
            && let Some(session) = session.take()
        {
            session.cancel();
        }
    }

    /// Nobody gets a turn any more; who has one keeps it.
    pub fn close(&self) {
        self.turn.close();
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// Whether somebody has the turn.
    pub fn is_busy(&self) -> bool {
        self.turn.available_permits() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
