//! How an engine and its sessions are to be.

use std::path::PathBuf;

use super::{DeviceChoice, SparsityChoice, place::PlaceOptions};
use crate::{
    cpu::CpuOptions,
    format::ReadMode,
    model::{Activation, KvType, ModelConfig},
    sparsity::{placement::Machine, sidecar::SidecarChoice},
};

/// Context when none is asked for, unless the model was trained with less: enough for a conversation, and its cache fits
/// beside a large model.
const DEFAULT_CONTEXT: usize = 4096;

/// How to open a model.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Longest context of a session, in tokens. `None`: what the model was trained with, at most 4096. More than it was
    /// trained with is allowed, unless its positions are learned and it has no more of them.
    pub context: Option<usize>,
    /// Type of the KV caches.
    pub kv_type: KvType,
    /// Threads and instruction set.
    pub cpu: CpuOptions,
    /// FFN activation, for files that do not say.
    pub activation: Option<Activation>,
    /// Map the file or read it into RAM.
    pub read_mode: ReadMode,
    /// What `prepare` found out about the model: where to look for it.
    pub sidecar: SidecarChoice,
    /// Tokens of a prompt computed at a time, between which sessions take turns: at least 1.
    pub chunk: usize,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Which neurons to skip.
    pub sparsity: SparsityChoice,
    /// Share of the firings that predictors have to find: [`SparsityChoice::Auto`] uses them only if they do, and
    /// [`EngineOptions::adaptive`] holds them to it.
    pub recall: f32,
    /// Whether neurons that fire often lately take the places in VRAM of those that do not, and predictors are corrected while
    /// they work.
    pub adaptive: bool,
    /// A `.gpuidx` file of PowerInfer's: the neurons it puts on the GPU are in VRAM, as far as the budget has room, instead of those that
    /// are expected to be worth most there.
    pub split: Option<PathBuf>,
    /// Whether the neurons that are not in VRAM are sent there piece by piece for long prompts, to be multiplied there; `None`: where
    /// that is expected to be quicker than the CPU on a machine of these speeds.
    pub stream_prompts: Option<bool>,
    /// Speeds of this machine to plan with; `None`: those in [`EngineOptions::speeds`], else those of a typical desktop.
    pub machine: Option<Machine>,
    /// Folder in which the speeds of machines are kept
    /// ([`cached_machine`](crate::sparsity::measure::cached_machine) measures them).
    pub speeds: Option<PathBuf>,
}

impl EngineOptions {
    pub(super) fn place(&self) -> PlaceOptions {
        let (cpu, chunk, speeds) = (self.cpu.clone(), self.chunk, self.speeds.clone());
        PlaceOptions { cpu, chunk, speeds, ..PlaceOptions::default() }
    }

    /// Tokens of a session's context that has no length of its own.
    pub fn context_of(&self, config: &ModelConfig) -> usize {
        self.context.unwrap_or(config.context_length.min(DEFAULT_CONTEXT))
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context: None,
            kv_type: KvType::F16,
            cpu: CpuOptions::default(),
            activation: None,
            read_mode: ReadMode::Map,
            sidecar: SidecarChoice::Beside,
            chunk: 512,
            device: DeviceChoice::Cpu,
            sparsity: SparsityChoice::Auto,
            recall: 0.95,
            adaptive: false,
            split: None,
            stream_prompts: None,
            machine: None,
            speeds: None,
        }
    }
}

/// What a session may have otherwise than its engine.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Context in tokens; `None`: [`EngineOptions::context`].
    pub context: Option<usize>,
    /// Type of the KV cache; `None`: [`EngineOptions::kv_type`].
    pub kv_type: Option<KvType>,
}
