//! Whether a device is still there.

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};

/// Why a device was lost, once it is. Callbacks of the driver write it, from any thread.
#[derive(Debug, Clone)]
pub(super) struct Health {
    adapter: Arc<str>,
    lost: Arc<OnceLock<String>>,
}

impl Health {
    pub fn new(adapter: &str) -> Self {
        Health { adapter: adapter.into(), lost: Arc::default() }
    }

    /// Declares the device lost; the first reason stays.
    pub fn lose(&self, reason: String) {
        if self.lost.set(reason.clone()).is_ok() {
            tracing::warn!(adapter = &*self.adapter, reason, "GPU lost");
        }
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
}
