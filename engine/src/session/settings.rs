//! Settings of an engine and its sessions: settings given at opening, and settings that callers
//! change while the engine runs.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use parking_lot::Mutex;

use super::{
    DeviceChoice, LivePlanner, Priority, SparsityChoice, live_planner::device_chunk, loader::DeviceLoadOptions,
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::CpuOptions;
use thermocline_formats::format::ReadMode;
use thermocline_lab::sparsity::sidecar::SidecarChoice;
use thermocline_model::{Activation, ModelConfig};
use thermocline_run::{
    placement::{Machine, PlanInputs, PowerInferSplit},
    runtime::{KvType, RoutePreference},
};

/// Longest default context in tokens. It is enough for a conversation, and its cache fits next to a
/// large model.
const DEFAULT_CONTEXT: usize = 4096;

/// Options for opening a model.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Longest context of a session in tokens. `None` uses the trained context, at most 4096. It
    /// may exceed the trained context, unless the model has learned positions and no more of them.
    pub context: Option<usize>,
    /// Type of the KV caches.
    pub kv_type: KvType,
    /// Largest number of bytes for the KV caches of all sessions; `None` for no limit. Caches of
    /// idle sessions are dropped for active ones, and requests wait until there is room. A single
    /// cache is never refused.
    pub kv_budget: Option<u64>,
    /// Threads and instruction set.
    pub cpu: CpuOptions,
    /// FFN activation, for files that do not specify it.
    pub activation: Option<Activation>,
    /// Whether the files are mapped or read into RAM.
    pub read_mode: ReadMode,
    /// Bytes of RAM that the model may take: its mapped weights, those of its draft model, and the
    /// KV caches of [`EngineOptions::sessions`]. Weights beyond that are read from disk when they
    /// are needed. `None` leaves it to the system which weights are in RAM.
    pub ram: Option<u64>,
    /// Number of sessions for whose KV caches [`EngineOptions::ram`] has room. More sessions may be
    /// open.
    pub sessions: usize,
    /// Where to look for the sidecar, which `prepare` wrote.
    pub sidecar: SidecarChoice,
    /// File of a draft model: a small model with the same tokens, which proposes tokens to the
    /// model.
    pub draft: Option<PathBuf>,
    /// File or folder with the vision tower of the model. `None` uses one that lies beside the
    /// model and belongs to it, if there is one
    /// ([`Tower::beside`](thermocline_model::Tower::beside)).
    pub mmproj: Option<PathBuf>,
    /// Number of prompt tokens computed at a time, at least 1. Sessions take turns between chunks.
    /// Chunks whose experts are streamed to a GPU have up to 2,048 tokens, unless fewer than 256
    /// are given.
    pub chunk: usize,
    /// True if control tokens in messages, tools and files act as control tokens, as in other
    /// programs. The author of a message can then end the turn. If false, they are plain text.
    pub special_in_content: bool,
    /// The device to compute on.
    pub device: DeviceChoice,
    /// Choice of the sparsity mode.
    pub sparsity: SparsityChoice,
    /// Fraction of the layers' weights that is skipped because their inputs are small
    /// ([`Model::skip_inputs`](thermocline_model::Model::skip_inputs)), in every mode except
    /// [`Sparsity::Dense`](thermocline_run::runtime::Sparsity::Dense).
    pub level: Option<f32>,
    /// Fraction of the firings that predictors must find. [`SparsityChoice::Auto`] uses only
    /// predictors that do, and [`EngineOptions::adaptive`] corrects them to keep it.
    pub recall: f32,
    /// True to swap neurons that fired often lately for colder ones in VRAM, and to correct
    /// predictors at run time. `None` does so for models with experts and for models without a
    /// profile, unless `split` chooses the neurons.
    pub adaptive: Option<bool>,
    /// Preference of routers for resident experts while tokens are decoded. It changes answers.
    pub routes: RoutePreference,
    /// Folder for firing counts, kept between runs to plan models without a profile. `None` keeps
    /// no counts.
    pub counts: Option<PathBuf>,
    /// A PowerInfer `.gpuidx` file. The neurons that it puts on the GPU are kept in VRAM as far as
    /// the budget allows, instead of the best neurons.
    pub split: Option<PathBuf>,
    /// Whether to stream cold neurons and experts to the GPU for long prompts. `None` streams if
    /// that is expected to be faster than the CPU, at the machine's speeds.
    pub stream_prompts: Option<bool>,
    /// Speeds of this machine for plans. `None` uses the speeds saved in [`EngineOptions::speeds`],
    /// or else a typical desktop's speeds.
    pub machine: Option<Machine>,
    /// Folder with the saved speeds of machines, which
    /// [`cached_machine`](thermocline_lab::calibration::cached_machine) measures.
    pub speeds: Option<PathBuf>,
}

impl EngineOptions {
    pub(super) fn device_load(&self) -> DeviceLoadOptions {
        let (cpu, chunk, speeds) = (self.cpu.clone(), self.chunk, self.speeds.clone());
        DeviceLoadOptions { cpu, chunk, speeds, ..DeviceLoadOptions::default() }
    }

    /// Checks the options that do not depend on the model.
    pub(super) fn check(&self) -> Result<()> {
        if self.chunk == 0 {
            return Err(Error::invalid("chunk", "at least 1 token", 0));
        }
        if !(0.0..=1.0).contains(&self.recall) {
            return Err(Error::invalid("recall", "a fraction from 0 to 1", self.recall));
        }
        Ok(())
    }

    /// A planner with these `inputs`, which follows `split` if it is given. Streaming and the chunk
    /// come from the options.
    pub(super) fn planner(&self, inputs: PlanInputs, split: Option<PowerInferSplit>) -> LivePlanner {
        let (chunk, stream_prompts) = (device_chunk(self.chunk), self.stream_prompts);
        let mut planner = LivePlanner::new(PlanInputs { chunk, stream_prompts, ..inputs });
        if let Some(machine) = self.machine.clone() {
            planner = planner.with_machine(machine);
        }
        match split {
            Some(split) => planner.following(split),
            None => planner,
        }
    }

    /// Context length in tokens for sessions that do not set their own.
    pub fn context_of(&self, config: &ModelConfig) -> usize {
        // An encoder cannot forget a part of a text, and its cache fills only with the text.
        let most = if config.is_encoder() { usize::MAX } else { DEFAULT_CONTEXT };
        self.context.unwrap_or(config.context_length.min(most))
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context: None,
            kv_type: KvType::F16,
            kv_budget: None,
            cpu: CpuOptions::default(),
            activation: None,
            read_mode: ReadMode::Map,
            ram: None,
            sessions: 1,
            sidecar: SidecarChoice::Beside,
            draft: None,
            mmproj: None,
            chunk: 512,
            special_in_content: false,
            device: DeviceChoice::Cpu,
            sparsity: SparsityChoice::Auto,
            level: None,
            recall: 0.95,
            adaptive: None,
            routes: RoutePreference::OFF,
            counts: None,
            split: None,
            stream_prompts: None,
            machine: None,
            speeds: None,
        }
    }
}

/// Options of one session.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Context in tokens; `None`: [`EngineOptions::context`].
    pub context: Option<usize>,
    /// Type of the KV cache; `None`: [`EngineOptions::kv_type`].
    pub kv_type: Option<KvType>,
    /// Priority among the engine's sessions.
    pub priority: Priority,
}

/// Settings that callers can change while an engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestedSettings {
    /// Choice of the sparsity mode.
    pub sparsity: SparsityChoice,
    /// Largest number of bytes of device memory; `None` allows all free memory.
    pub budget: Option<u64>,
    /// True to adapt the hot set to the text.
    pub adaptive: bool,
}

/// The latest requested settings, written by callers and applied by the engine thread. Only the
/// last value of each setting counts, because a slider may move faster than the engine.
#[derive(Debug)]
pub(super) struct SettingsMailbox {
    settings: Mutex<RequestedSettings>,
    /// True if the thread was notified and has not yet taken the settings.
    notified: AtomicBool,
}

impl SettingsMailbox {
    pub fn new(settings: RequestedSettings) -> Self {
        SettingsMailbox { settings: Mutex::new(settings), notified: AtomicBool::new(false) }
    }

    /// The latest requested settings.
    pub fn latest(&self) -> RequestedSettings {
        *self.settings.lock()
    }

    /// Changes the settings. True if the thread must be notified.
    #[must_use]
    pub fn change(&self, change: impl FnOnce(&mut RequestedSettings)) -> bool {
        change(&mut self.settings.lock());
        !self.notified.swap(true, SeqCst)
    }

    /// Takes the settings to apply.
    pub fn take(&self) -> RequestedSettings {
        // The flag is cleared first, so that any later change notifies again.
        self.notified.store(false, SeqCst);
        self.latest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_mailbox_notifies_once_and_keeps_the_last_value() {
        let settings = RequestedSettings { sparsity: SparsityChoice::Auto, budget: None, adaptive: false };
        let mailbox = SettingsMailbox::new(settings);
        assert!(mailbox.change(|settings| settings.budget = Some(1)));
        assert!(!mailbox.change(|settings| settings.budget = Some(2)));
        assert!(!mailbox.change(|settings| settings.adaptive = true));
        let taken = mailbox.take();
        assert_eq!((taken.budget, taken.adaptive), (Some(2), true));
        assert!(mailbox.change(|settings| settings.budget = Some(3)));
        assert_eq!(mailbox.latest().budget, Some(3));
    }
}
