//! The model that a server answers with.

use std::sync::Arc;

use thermocline_engine::{
    runtime::CacheBytes,
    session::{Engine, Request},
};

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

impl ServedModel {
    /// The most bytes that the KV caches of `slots` contexts take, with recurrent states and snapshots.
    pub fn slot_bytes(&self, slots: usize) -> u64 {
        let engine = &self.engine;
        let of = |ty| CacheBytes::of(engine.config(), engine.context(), ty).total();
        // A layer's cache may be on either side.
        let one = of(engine.kv_type()).max(of(engine.kv_type().on_gpu()));
        let all = one.saturating_mul(slots as u64);
        // A single cache is never refused.
        engine.kv_budget().map_or(all, |budget| all.min(budget.max(one)))
    }
}

/// Returns the model that is open now, or a sentence that says why there is none. It must not block.
pub type ModelSource = Arc<dyn Fn() -> Result<ServedModel, String> + Send + Sync>;
