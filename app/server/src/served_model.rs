//! The model that a server answers with.

use std::sync::Arc;

use thermocline_engine::{
    runtime::CacheBytes,
    session::{Engine, Request},
};

/// An open model.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// Name of the model for clients.
    pub name: String,
    /// Time when the model was opened, in seconds since 1970.
    pub since: u64,
    /// The engine.
    pub engine: Engine,
    /// Values for fields that a request omits. The prompt in it is not used.
    pub defaults: Request,
}

impl ServedModel {
    /// The most bytes that the KV caches of `slots` contexts take, including recurrent states,
    /// snapshots and the caches of the draft model.
    pub fn slot_bytes(&self, slots: usize) -> u64 {
        let engine = &self.engine;
        let models = || [Some(engine.model()), engine.draft_model()].into_iter().flatten();
        let of = |ty| {
            let bytes = models().map(|model| CacheBytes::of(&model.config, engine.context(), ty).total());
            bytes.fold(0, u64::saturating_add)
        };
        // A layer's cache may be on the CPU or on the GPU.
        let one = of(engine.kv_type()).max(of(engine.kv_type().on_gpu()));
        let all = one.saturating_mul(slots as u64);
        // The engine never refuses the only cache.
        engine.kv_budget().map_or(all, |budget| all.min(budget.max(one)))
    }
}

/// Returns the model that is open now, or a sentence that says why no model is open. It must not
/// block.
pub type ModelSource = Arc<dyn Fn() -> Result<ServedModel, String> + Send + Sync>;
