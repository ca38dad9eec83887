//! The inputs of a plan besides the model: how the model is used, and the machine's speeds.

use std::sync::Arc;

use super::{Limits, Machine, Streaming, WeightLimit};
use crate::runtime::{KvType, Sparsity};

/// The inputs of a plan besides the model. Equal inputs give equal plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInputs {
    /// Sparsity mode of decoding.
    pub sparsity: Sparsity,
    /// Tokens per context. A token is timed with half of them filled.
    pub context: usize,
    /// Contexts held at once.
    pub sessions: usize,
    /// Type of the KV caches.
    pub kv_type: KvType,
    /// Prompt tokens that the device computes at a time.
    pub chunk: usize,
    /// Whether cold neurons and experts of prompts are streamed to the device: always, never, or
    /// (`None`) if streaming is expected to be faster.
    pub stream_prompts: Option<bool>,
    /// The RAM for weights. `None` if all of them fit.
    pub ram: Option<WeightLimit>,
    /// Speeds of the processors.
    pub machine: Arc<Machine>,
}

impl PlanInputs {
    /// Most prompt tokens that a device computes at a time. More would need more memory, and a
    /// desktop that uses the GPU would stutter.
    pub const MAX_CHUNK: usize = 256;

    /// Makes the inputs of one context of `context` tokens on a typical desktop.
    pub fn new(sparsity: Sparsity, context: usize, kv_type: KvType) -> Self {
        PlanInputs {
            sparsity,
            context,
            sessions: 1,
            kv_type,
            chunk: Self::MAX_CHUNK,
            stream_prompts: None,
            ram: None,
            machine: Arc::new(Machine::typical()),
        }
    }

    /// Decides which processor computes the cold neurons and experts of prompts.
    pub fn streaming(&self) -> Streaming {
        match self.stream_prompts {
            Some(true) => Streaming::Always,
            Some(false) => Streaming::Never,
            None => Streaming::Priced(Arc::clone(&self.machine)),
        }
    }

    /// Limits of the machine's GPU, or of a typical GPU if the machine has none.
    pub fn limits(&self) -> Limits {
        self.machine.gpu.as_ref().map_or(Machine::typical_limits(), |gpu| gpu.limits)
    }
}

/// How a plan may use the GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuUse {
    /// Never, because there is no GPU or none was selected.
    Never,
    /// Only if a plan with the GPU is expected to be faster than the CPU alone.
    IfQuicker,
    /// As much as fits, even if the CPU alone is expected to be faster.
    #[default]
    Always,
}
