//! Health of a device: the reason of its loss.

use std::{
    fmt::Display,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::error::{Error, Result, first_line, root_cause};

/// Why a device was lost, once it is. Callbacks of the driver write it, from any thread.
#[derive(Debug, Clone)]
pub(super) struct Health {
    adapter: Arc<str>,
    lost: Arc<OnceLock<String>>,
    /// A failure on purpose: memory that is not there when it is first used.
    hollow: Arc<AtomicBool>,
}

impl Health {
    pub fn new(adapter: &str) -> Self {
        Health { adapter: adapter.into(), lost: Arc::default(), hollow: Arc::default() }
    }

    /// Declares the device lost; the first reason stays, its first line for people and all of it for the log.
    pub fn lose(&self, reason: &str) {
        if self.lost.set(first_line(reason)).is_ok() {
            tracing::warn!(adapter = &*self.adapter, reason, "GPU lost");
        }
    }

    /// The same, for what `error` comes down to.
    pub fn lose_by(&self, error: &wgpu::Error) {
        if self.lost.set(root_cause(error)).is_ok() {
            tracing::warn!(adapter = &*self.adapter, %error, "GPU lost");
        }
    }

    /// Declares the device lost and returns the error that says so.
    pub fn lost(&self, reason: &str) -> Error {
        self.lose(reason);
        self.check().err().unwrap_or_else(|| self.error(reason))
    }

    /// Has the next submission fail.
    pub fn fail_on_first_use(&self) {
        self.hollow.store(true, Relaxed);
    }

    /// True once a submission uses memory that is not there.
    pub fn used_in_vain(&self) -> bool {
        self.hollow.load(Relaxed)
    }

    pub fn reason(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// [`Error::Gpu`] once it is lost.
    pub fn check(&self) -> Result<()> {
        self.reason().map_or(Ok(()), |reason| Err(self.error(reason)))
    }

    pub fn error(&self, reason: impl ToString) -> Error {
        Error::Gpu { adapter: self.adapter.to_string(), reason: reason.to_string() }
    }

    /// [`Error::Gpu`] that says in a line that `what` failed and what `error` comes down to. All of `error` goes to the log.
    pub fn failed(&self, what: impl Display, error: &(dyn std::error::Error + 'static)) -> Error {
        tracing::warn!(adapter = &*self.adapter, %what, %error, "GPU refused");
        self.error(format!("{what}: {}", root_cause(error)))
    }
}
