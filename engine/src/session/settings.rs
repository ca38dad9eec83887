//! Settings of an engine and its sessions: those they are opened with, and those that callers change while the engine runs.

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
    runtime::{KvType, Sparsity},
};

/// Longest default context, in tokens: enough for a conversation, and its cache fits beside a large model.
const DEFAULT_CONTEXT: usize = 4096;

/// Options of opening a model.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Longest context of a session, in tokens. `None`: what the model was trained with, at most 4096. More than it was
    /// trained with is allowed, unless its positions are learned and it has no more of them.
    pub context: Option<usize>,
    /// Type of the KV caches.
    pub kv_type: KvType,
    /// Most bytes of the KV caches of all sessions that hold tokens; `None`: no limit. Caches of idle sessions are given up for those of
    /// others, and requests wait until there is room. A single cache is never refused.
    pub kv_budget: Option<u64>,
    /// Threads and instruction set.
    pub cpu: CpuOptions,
    /// FFN activation, for files that do not say.
    pub activation: Option<Activation>,
    /// Map the file or read it into RAM.
    pub read_mode: ReadMode,
    /// Place of the sidecar, which `prepare` wrote.
    pub sidecar: SidecarChoice,
    /// Tokens of a prompt computed at a time, between which sessions take turns: at least 1.
    pub chunk: usize,
    /// Control tokens in messages, tools and files count as such, as in other programs: who writes them can end the turn. Without, they
    /// are words.
    pub special_in_content: bool,
    /// The device to compute on.
    pub device: DeviceChoice,
    /// Neurons to skip.
    pub sparsity: SparsityChoice,
    /// Fraction of the layers' weights that is skipped because their inputs are small ([`Model::skip_inputs`](thermocline_model::Model::skip_inputs)),
    /// in every mode but [`Sparsity::Dense`](thermocline_run::runtime::Sparsity::Dense).
    pub level: Option<f32>,
    /// Fraction of the firings that predictors have to find: [`SparsityChoice::Auto`] uses them only if they do, and
    /// [`EngineOptions::adaptive`] holds them to it.
    pub recall: f32,
    /// Swap neurons that have lately fired often for colder ones in VRAM, and correct predictors while they work; `None`: for
    /// models without a profile, unless `split` chooses the neurons.
    pub adaptive: Option<bool>,
    /// Folder in which counts of firings are kept between runs, for plans of models without a profile; `None`: they are not.
    pub counts: Option<PathBuf>,
    /// A `.gpuidx` file of PowerInfer's: the neurons it puts on the GPU are in VRAM, as far as the budget has room, instead of
    /// those that are expected to be worth most there.
    pub split: Option<PathBuf>,
    /// Stream cold neurons to the GPU for long prompts: always, never, or (`None`) where that is expected to be quicker than the
    /// CPU at the machine's speeds.
    pub stream_prompts: Option<bool>,
    /// Speeds of this machine to plan with; `None`: those in [`EngineOptions::speeds`], else those of a typical desktop.
    pub machine: Option<Machine>,
    /// Folder in which the speeds of machines are kept ([`cached_machine`](thermocline_lab::calibration::cached_machine) measures them).
    pub speeds: Option<PathBuf>,
}

impl EngineOptions {
    pub(super) fn device_load(&self) -> DeviceLoadOptions {
        let (cpu, chunk, speeds) = (self.cpu.clone(), self.chunk, self.speeds.clone());
        DeviceLoadOptions { cpu, chunk, speeds, ..DeviceLoadOptions::default() }
    }

    /// Checks what does not depend on the model.
    pub(super) fn check(&self) -> Result<()> {
        if self.chunk == 0 {
            return Err(Error::invalid("chunk", "at least 1 token", 0));
        }
        if !(0.0..=1.0).contains(&self.recall) {
            return Err(Error::invalid("recall", "a fraction from 0 to 1", self.recall));
        }
        Ok(())
    }

    /// The planner for contexts of `context` tokens, which follows `split` if there is one.
    pub(super) fn planner(&self, mode: Sparsity, context: usize, split: Option<PowerInferSplit>) -> LivePlanner {
        let mut planner = LivePlanner::new(PlanInputs {
            chunk: device_chunk(self.chunk),
            stream_prompts: self.stream_prompts,
            ..PlanInputs::new(mode, context, self.kv_type)
        });
        if let Some(machine) = self.machine.clone() {
            planner = planner.with_machine(machine);
        }
        match split {
            Some(split) => planner.following(split),
            None => planner,
        }
    }

    /// Tokens of the context of a session that has no length of its own.
    pub fn context_of(&self, config: &ModelConfig) -> usize {
        self.context.unwrap_or(config.context_length.min(DEFAULT_CONTEXT))
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
            sidecar: SidecarChoice::Beside,
            chunk: 512,
            special_in_content: false,
            device: DeviceChoice::Cpu,
            sparsity: SparsityChoice::Auto,
            level: None,
            recall: 0.95,
            adaptive: None,
            counts: None,
            split: None,
            stream_prompts: None,
            machine: None,
            speeds: None,
        }
    }
}

/// Settings of one session.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Context in tokens; `None`: [`EngineOptions::context`].
    pub context: Option<usize>,
    /// Type of the KV cache; `None`: [`EngineOptions::kv_type`].
    pub kv_type: Option<KvType>,
    /// Its rank among other sessions.
    pub priority: Priority,
}

/// The settings that callers can change while an engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestedSettings {
    /// Neurons to skip.
    pub sparsity: SparsityChoice,
    /// Most bytes of device memory; `None`: all that is free.
    pub budget: Option<u64>,
    /// True to let the hot set follow the text.
    pub adaptive: bool,
}

/// The latest requested settings: written by callers, applied by the engine thread. Only the last value of each counts, since a
/// slider may move faster than the engine.
#[derive(Debug)]
pub(super) struct SettingsMailbox {
    settings: Mutex<RequestedSettings>,
    /// True if the thread has been notified and has not taken the settings yet.
    notified: AtomicBool,
}

impl SettingsMailbox {
    pub fn new(settings: RequestedSettings) -> Self {
        SettingsMailbox { settings: Mutex::new(settings), notified: AtomicBool::new(false) }
    }

    /// The settings requested last.
    pub fn latest(&self) -> RequestedSettings {
        *self.settings.lock()
    }

    /// Changes the settings. True if the thread has to be notified.
    #[must_use]
    pub fn change(&self, change: impl FnOnce(&mut RequestedSettings)) -> bool {
        change(&mut self.settings.lock());
        !self.notified.swap(true, SeqCst)
    }

    /// The settings for the thread to apply.
    pub fn take(&self) -> RequestedSettings {
        // In this order: a change from here on notifies again.
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
