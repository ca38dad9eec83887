//! Where a server gets its model from.

use std::sync::Arc;

use thermocline_engine::session::{Engine, Request};

/// A model that may be asked.
#[derive(Debug, Clone)]
pub struct Offer {
    /// What clients call it.
    pub name: String,
    /// Since when it is there, in seconds since 1970.
    pub since: u64,
    /// It.
    pub engine: Engine,
    /// How it answers where a request does not say; the prompt is not used.
    pub defaults: Request,
}

/// Tells which model there is now, or in a sentence why there is none. It must not wait.
pub type Source = Arc<dyn Fn() -> Result<Offer, String> + Send + Sync>;
