//! Cancellation of a request from another thread.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use parking_lot::Mutex;

/// Cancels one request, even while its server is silent. Clones cancel the same request.
#[derive(Clone, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Default)]
struct CancelState {
    cancelled: AtomicBool,
    /// The agent of the running request. Shutting it down closes the connection.
    agent: Mutex<Option<ureq::Agent>>,
}

impl Cancel {
    /// Closes the connection, so that the server stops generating.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, SeqCst);
        if let Some(agent) = self.0.agent.lock().take() {
            agent.shutdown();
        }
    }

    /// `true` if the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(SeqCst)
    }

    /// Sets the agent of the request that begins. If the request is already cancelled, its
    /// connection closes at once.
    pub(super) fn attach(&self, agent: &ureq::Agent) {
        *self.0.agent.lock() = Some(agent.clone());
        if self.is_cancelled() {
            self.cancel();
        }
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}
