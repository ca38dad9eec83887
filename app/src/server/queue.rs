//! The queue for the server's one session. One request is answered at a time, in order of arrival; what the session has computed
//! for the previous request need not be computed again where the next one begins alike.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use parking_lot::Mutex;
use thermocline_engine::{
    Error,
    session::{Engine, Session, SessionOptions},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// The waiting requests and the session.
#[derive(Debug)]
pub struct RequestQueue {
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    max_waiting: usize,
    session: Mutex<Option<Arc<Session>>>,
}

/// The right to use the session, until it is dropped.
#[derive(Debug)]
pub struct SessionPermit {
    _permit: OwnedSemaphorePermit,
}

/// One waiting request; dropping it leaves the queue.
struct QueuePlace<'a>(&'a AtomicUsize);

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn is_session_of(session: &Session, engine: &Engine) -> bool {
    Arc::ptr_eq(session.engine().model(), engine.model())
}

impl RequestQueue {
    /// An empty queue of at most `max_waiting` requests.
    pub fn new(max_waiting: usize) -> Self {
        RequestQueue {
            permits: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            max_waiting,
            session: Mutex::default(),
        }
    }

    /// Waits for the session. Dropping the future leaves the queue.
    pub async fn acquire(&self) -> Result<SessionPermit, ApiError> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(SessionPermit { _permit: permit });
        }
        let _place = self.enter()?;
        match Arc::clone(&self.permits).acquire_owned().await {
            Ok(permit) => Ok(SessionPermit { _permit: permit }),
            Err(_) => Err(ApiError::unavailable("the server is being stopped")),
        }
    }

    fn enter(&self) -> Result<QueuePlace<'_>, ApiError> {
        let increment = |waiting| (waiting < self.max_waiting).then_some(waiting + 1);
        let entered = self.waiting.fetch_update(SeqCst, SeqCst, increment);
        entered.map(|_| QueuePlace(&self.waiting)).map_err(ApiError::queue_full)
    }

    /// The session of `engine`, for the holder of the permit.
    pub fn session(&self, engine: &Engine) -> Result<Arc<Session>, Error> {
        let mut session = self.session.lock();
        if let Some(session) = session.as_ref().filter(|it| is_session_of(it, engine)) {
            return Ok(Arc::clone(session));
        }
        // The old one is dropped first, to make room for the new one.
        *session = None;
        Ok(Arc::clone(session.insert(Arc::new(engine.session(SessionOptions::default())?))))
    }

    /// Cancels and drops the session, unless it belongs to `engine`.
    pub fn release_session_unless(&self, engine: Option<&Engine>) {
        let mut session = self.session.lock();
        if session.as_ref().is_some_and(|it| !engine.is_some_and(|engine| is_session_of(it, engine)))
            && let Some(session) = session.take()
        {
            session.cancel();
        }
    }

    /// Refuses all waiting and later requests; the permit that is held stays valid.
    pub fn close(&self) {
        self.permits.close();
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// `true` while a request holds the session.
    pub fn is_busy(&self) -> bool {
        self.permits.available_permits() == 0
    }
}
