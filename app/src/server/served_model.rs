//! The model that a server answers with.

use std::sync::Arc;

use thermocline_engine::session::{Engine, Request};

/// An open model.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// Name that clients use.
    pub name: String,
    /// Time at which it was opened, in seconds since 1970.
    pub since: u64,
    /// The engine.
    pub engine: Engine,
    /// Values for what a request leaves out; the prompt is not used.
    pub defaults: Request,
}

/// Returns the model that is open now, or a sentence that says why there is none. It must not block.
pub type ModelSource = Arc<dyn Fn() -> Result<ServedModel, String> + Send + Sync>;
