//! The state that an engine's handles and its thread share.

use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use parking_lot::Mutex;

use super::{
    DeviceChoice, DeviceLoadOptions, DeviceStatus, LivePlanner, LoadStage, SparsityReport,
    budget_forecast::{DecodeConditions, DecodeRates},
    device::StatusBoard,
    ffn_reads::FfnSize,
    loader::LoadedModels,
    picture_ids::PictureIds,
    request::{EngineStop, StopCell},
    sampling::{Grammar, GrammarCompiler, GrammarState},
    settings::SettingsMailbox,
    step_times::TimedTokens,
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::{Telemetry, neurons::NeuronBoard},
};
use thermocline_lab::sparsity::KeptCounts;
use thermocline_model::{Model, Tower};
use thermocline_run::{
    device::{caps_of, tower_bytes},
    placement::{Machine, Resident},
    runtime::{RoutePreference, Sparsity},
};
use thermocline_text::{ChatTemplate, Tokenizer};

/// The state that an engine's handles and its thread share.
#[derive(Debug)]
pub(super) struct EngineState {
    pub model: Arc<Model>,
    /// A small model with the same tokens, which proposes tokens to the model.
    pub draft_model: Option<Arc<Model>>,
    pub text: TextCodec,
    pub device: EngineDevice,
    pub figures: EngineFigures,
    pub planner: Arc<LivePlanner>,
    pub settings: SettingsMailbox,
    pub sparsity: Mutex<SparsityReport>,
    pub recall: f32,
    /// Largest number of bytes of all caches; `None` for no limit.
    pub kv_budget: Option<u64>,
    pub chunk: usize,
    /// Preference of routers for resident experts while tokens are decoded.
    pub routes: RoutePreference,
    pub stopped: StopCell,
    /// The vision tower of the model, if it has one.
    pub tower: Option<Arc<Tower>>,
    /// Bytes that its largest picture takes on a device, once they were asked for.
    pub tower_bytes: OnceLock<u64>,
    /// The token ids of pictures.
    pub pictures: Mutex<PictureIds>,
}

/// Tokenizer, chat template and grammars, which convert messages to tokens and back.
#[derive(Debug)]
pub(super) struct TextCodec {
    pub tokenizer: Tokenizer,
    pub template: ChatTemplate,
    /// True if control tokens in messages act as control tokens, rather than as plain text.
    pub special_in_content: bool,
    /// Compiler of grammars, made for the first request with a grammar.
    pub grammars: OnceLock<GrammarCompiler>,
}

impl TextCodec {
    /// The tokenizer and the chat template of `model`.
    pub fn new(model: &Model, special_in_content: bool) -> Result<Self> {
        let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
        let template = ChatTemplate::from_checkpoint(&model.checkpoint, &tokenizer);
        Ok(TextCodec { tokenizer, template, special_in_content, grammars: OnceLock::new() })
    }
}

/// The chosen device, and the device in use.
#[derive(Debug)]
pub(super) struct EngineDevice {
    pub status: StatusBoard,
    /// The latest choice of a device.
    pub choice: Mutex<DeviceChoice>,
    /// The parts of the model on the device now.
    pub resident: Mutex<Option<Arc<Resident>>>,
    /// Options for loading any device.
    pub load: DeviceLoadOptions,
}

impl EngineDevice {
    /// An initial state; `loads` is true if the chosen device will be loaded.
    pub fn new(choice: DeviceChoice, load: DeviceLoadOptions, loads: bool) -> Self {
        let status = StatusBoard::new(match loads {
            true => DeviceStatus::Loading(LoadStage::Opening),
            false => DeviceStatus::Cpu { reason: None },
        });
        EngineDevice { status, choice: Mutex::new(choice), resident: Mutex::default(), load }
    }
}

/// Figures that the engine's thread measures and counts.
#[derive(Debug)]
pub(super) struct EngineFigures {
    pub telemetry: Telemetry,
    pub neurons: Arc<NeuronBoard>,
    pub decode_rates: DecodeRates,
    pub timed_tokens: TimedTokens,
    /// Firing counts that are saved for the next run.
    pub counts: Option<KeptCounts>,
    /// Bytes that each layer's FFN reads if nothing is skipped.
    pub ffn_sizes: Vec<FfnSize>,
    /// True once [`Engine::weigh_neurons`](super::Engine::weigh_neurons) was called.
    pub weighed: AtomicBool,
}

impl EngineFigures {
    /// Figures of `model` before any measurement, with `companions` bytes of weights beside it.
    pub fn new(model: &Model, companions: u64, neurons: Arc<NeuronBoard>, counts: Option<KeptCounts>) -> Self {
        let telemetry = Telemetry::default();
        telemetry.weight_bytes.set(model.checkpoint.tensor_bytes() + companions);
        EngineFigures {
            telemetry,
            neurons,
            decode_rates: DecodeRates::default(),
            timed_tokens: TimedTokens::default(),
            counts,
            ffn_sizes: FfnSize::of_layers(model),
            weighed: AtomicBool::new(false),
        }
    }
}

impl EngineState {
    /// The state of `grammar` before an answer's first token.
    pub fn compile_grammar(&self, grammar: &Grammar) -> Result<GrammarState> {
        if self.text.grammars.get().is_none() {
            let compiler = GrammarCompiler::new(&self.text.tokenizer, self.model.config.n_vocab)?;
            // Another thread may have set it first.
            let _ = self.text.grammars.set(compiler);
        }
        match self.text.grammars.get() {
            Some(compiler) => compiler.compile(grammar),
            None => Err(Error::invalid("grammar", "a grammar compiler", "no grammar compiler")),
        }
    }

    /// The model that drafts tokens, if there is one: the draft model, or else the draft head of
    /// the model.
    pub fn drafter(&self) -> Option<&Arc<Model>> {
        self.draft_model.as_ref().or(self.model.draft_head.as_ref())
    }

    /// The vision tower.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the model has none.
    pub fn tower(&self) -> Result<&Arc<Tower>> {
        self.tower.as_ref().ok_or_else(|| {
            // Clients of a server read this, so it does not name the folder.
            let path = &self.model.checkpoint.path;
            let model = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            let expected = format!("no pictures, because {model} has no vision tower that Thermocline can use");
            let expected = format!("{expected} (a file mmproj-*.gguf beside it)");
            Error::invalid("prompt", expected, "pictures")
        })
    }

    /// Bytes of device memory that the largest picture takes beside the model. 0 if no device
    /// computes pictures.
    pub fn tower_bytes(&self) -> u64 {
        let caps = || caps_of(Machine::typical_limits());
        let count = |tower: &Arc<Tower>| tower_bytes(&caps(), tower, tower.most_patches()).unwrap_or(0);
        *self.tower_bytes.get_or_init(|| self.tower.as_ref().map_or(0, count))
    }

    /// The models to load on a device.
    pub fn models(&self) -> LoadedModels<'_> {
        LoadedModels { model: &self.model, drafter: self.drafter().map(|drafter| &**drafter) }
    }

    /// Checks that no mapped file of the model, of the draft model or of the tower was lost.
    pub fn check_files(&self) -> Result<()> {
        self.model.checkpoint.files().check()?;
        self.tower.iter().try_for_each(|tower| tower.checkpoint.files().check())?;
        self.draft_model.iter().try_for_each(|draft| draft.checkpoint.files().check())
    }

    /// The error that every request gets if the engine has stopped. The loss of a mapped file stops
    /// the engine.
    pub fn stop_error(&self) -> Option<Error> {
        if self.stopped.get().is_none()
            && let Err(Error::FileLost { path }) = self.check_files()
        {
            tracing::error!(path = %path.display(), "a file of the model was truncated or removed");
            // Another thread may have set it first.
            let _ = self.stopped.set(EngineStop::FileLost(path));
        }
        self.stopped.get().map(EngineStop::error)
    }

    /// The conditions under which tokens are decoded now, in `mode`.
    pub fn decode_conditions(&self, mode: Sparsity) -> DecodeConditions {
        let device = match self.device.status.read() {
            DeviceStatus::Gpu(memory) => Some((memory.adapter, memory.budget)),
            _ => None,
        };
        DecodeConditions { mode, device }
    }
}
