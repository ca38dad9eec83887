//! A computation beside the answers: a thread changes a state, and the window reads it.

use std::{ops::ControlFlow, sync::Arc, thread};

use parking_lot::{Mutex, MutexGuard};
use thermocline_engine::Result;
use thermocline_host::engine_handle::{EngineHandle, error_message};

/// The state of a computation.
pub(super) trait ThreadState: Send + 'static {
    /// Notes that the computation failed. `why` is a sentence.
    fn fail(&mut self, why: String);
}

/// A running or finished computation. Dropping it stops the thread.
#[derive(Debug)]
pub(super) struct SideThread<S>(Arc<Mutex<S>>);

/// The state as the thread sees it.
#[derive(Debug)]
pub(super) struct SideWork<S> {
    /// The computation stops when no one else holds this.
    state: Arc<Mutex<S>>,
    handle: EngineHandle,
}

impl<S: ThreadState> SideThread<S> {
    /// Starts `work` on a thread of this name.
    pub fn start(
        handle: &EngineHandle,
        name: &str,
        state: S,
        work: impl FnOnce(&SideWork<S>) -> Result<()> + Send + 'static,
    ) -> Self {
        let started = SideThread(Arc::new(Mutex::new(state)));
        let of_thread = SideWork { state: Arc::clone(&started.0), handle: handle.clone() };
        let run = move || {
            if let Err(error) = work(&of_thread) {
                of_thread.publish(|state| state.fail(error_message(&error)));
            }
        };
        if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(run) {
            started.lock().fail(format!("The computation could not start: {error}"));
        }
        started
    }

    /// Locks the state that the thread writes.
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.0.lock()
    }
}

impl<S> SideWork<S> {
    /// Says whether the result is still wanted.
    pub fn proceed(&self) -> ControlFlow<()> {
        if Arc::strong_count(&self.state) == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Changes the state, and has it shown.
    pub fn publish(&self, change: impl FnOnce(&mut S)) {
        change(&mut self.state.lock());
        self.handle.notify();
    }
}
