//! The inputs of a plan beside the model: how it is used, and the machine's speeds.

use std::sync::Arc;

use super::{Limits, Machine, Streaming};
use crate::runtime::{KvType, Sparsity};

/// The inputs of a plan beside the model. Equal inputs give equal plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInputs {
    /// Sparsity mode in which tokens are decoded.
    pub sparsity: Sparsity,
    /// Tokens of each context. A token is timed with half of them filled.
    pub context: usize,
    /// Contexts held at once.
    pub sessions: usize,
    /// Type of the KV caches.
    pub kv_type: KvType,
    /// Prompt tokens that the device computes at a time.
    pub chunk: usize,
    /// Cold rows of prompts are streamed to the device: always, never, or (`None`) where that is expected to be quicker.
    pub stream_prompts: Option<bool>,
    /// Speeds of the processors.
    pub machine: Arc<Machine>,
}

impl PlanInputs {
    /// Most prompt tokens that a device computes at a time: more cost memory, and a desktop that uses the GPU would stutter.
    pub const MAX_CHUNK: usize = 256;

    /// One context of `context` tokens on a typical desktop.
    pub fn new(sparsity: Sparsity, context: usize, kv_type: KvType) -> Self {
        PlanInputs {
            sparsity,
            context,
            sessions: 1,
            kv_type,
            chunk: Self::MAX_CHUNK,
            stream_prompts: None,
            machine: Arc::new(Machine::typical()),
        }
    }

    /// The processor that computes the cold neurons' part of prompts.
    pub fn streaming(&self) -> Streaming {
        match self.stream_prompts {
            Some(true) => Streaming::Always,
            Some(false) => Streaming::Never,
            None => Streaming::Priced(Arc::clone(&self.machine)),
        }
    }

    /// Limits of the machine's GPU; those of a typical one where it has none.
    pub fn limits(&self) -> Limits {
        self.machine.gpu.as_ref().map_or(Machine::typical_limits(), |gpu| gpu.limits)
    }
}

/// The use of the GPU that a plan may make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuUse {
    /// Never: there is none, or none was chosen.
    Never,
    /// Only if that is expected to be quicker than the CPU alone.
    IfQuicker,
    /// For as much as fits, even where the CPU alone is expected to be quicker.
    #[default]
    Always,
}
