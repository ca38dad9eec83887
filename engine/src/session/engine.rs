//! The engine: a model and the thread that computes it.

mod controls;

use std::{
    path::Path,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use super::{
    DeviceLoadOptions, EngineOptions, Session, SessionOptions, SparsityReport, WeightRoom,
    companions::CompanionModels,
    context::SessionContext,
    drafter::Drafter,
    engine_state::{EngineDevice, EngineFigures, EngineState, TextCodec},
    loader::{DeviceSource, device_source},
    neuron_norms::mass_of,
    request::{StopCell, stopped_error},
    settings::{RequestedSettings, SettingsMailbox},
    sparsity,
    worker::{self, EngineCommand},
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::{Snapshot, neurons::NeuronBoard},
};
use thermocline_cpu::Cpu;
use thermocline_lab::sparsity::{
    KeptCounts, lacks_profile,
    sidecar::{SidecarAttachment, attach},
};
use thermocline_model::{LoadOptions, Model, ModelConfig, Position, Tower};
use thermocline_pictures::Picture;
use thermocline_run::{
    hybrid::PictureProcessor,
    placement::{PlanInputs, PowerInferSplit},
    runtime::{CacheBytes, Forward, KvCache, KvType},
};
use thermocline_text::{ChatTemplate, TemplateOrigin, Tokenizer};

/// Bytes that an engine holds, including those on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// Bytes of weights, either mapped (shared with the system's page cache) or read into RAM,
    /// including those of the draft model and of the vision tower.
    pub weights: u64,
    /// Bytes of the KV caches of all sessions.
    pub kv: u64,
    /// Bytes of the forward pass's buffers.
    pub scratch: u64,
}

/// A model ready to run. The handle can be cloned and used from any thread. The engine ends when
/// its last handle and session are dropped. That drop waits until the thread has stopped, which
/// takes no longer than a cancellation.
///
/// ```
/// use thermocline_engine::session::{
///     Engine, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions,
/// };
///
/// # fn main() -> thermocline_engine::Result<()> {
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/storyteller/storyteller-F16.gguf");
/// let engine = Engine::open(path.as_ref(), EngineOptions::default())?;
/// let session = engine.session(SessionOptions::default())?;
/// let request = Request {
///     sampling: Sampling::greedy(),
///     max_tokens: Some(12),
///     ..Request::new(Prompt::Text("Once upon a time".to_owned()))
/// };
/// let mut story = String::new();
/// for event in session.generate(request) {
///     match event {
///         Event::Token { text, .. } => story += &text,
///         Event::Done { stats, .. } => assert_eq!(stats.generated_tokens, 12),
///         Event::Error(error) => return Err(error),
///         _ => {}
///     }
/// }
/// assert!(!story.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Engine {
    handle: Arc<SharedEngine>,
}

/// The engine behind its handles. Dropping it stops the thread.
#[derive(Debug)]
struct SharedEngine {
    state: Arc<EngineState>,
    context: usize,
    kv_type: KvType,
    sessions: AtomicU64,
    commands: Sender<EngineCommand>,
    thread: Option<JoinHandle<()>>,
}

/// A handle that does not keep the engine alive.
#[derive(Debug)]
pub(super) struct WeakEngine(Weak<SharedEngine>);

impl WeakEngine {
    /// The engine, if another handle still keeps it alive.
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(|handle| Engine { handle })
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.commands.send(EngineCommand::Shutdown);
        if let Some(thread) = self.thread.take() {
            // The thread's panics were reported where they happened.
            let _ = thread.join();
        }
    }
}

impl Engine {
    /// Opens a GGUF file, a PowerInfer GGUF or a Hugging Face folder.
    pub fn open(path: &Path, options: EngineOptions) -> Result<Self> {
        let load = LoadOptions { read_mode: options.read_mode, activation: options.activation };
        let mut model = Model::open(path, &load)?;
        if let SidecarAttachment::Ignored { path, reason } = attach(&mut model, &options.sidecar, options.read_mode)? {
            tracing::warn!(path = %path.display(), reason, "the sidecar is not used");
        }
        Self::from_model(model, options)
    }

    /// Starts an engine with a loaded model. It ignores `options.activation` and `options.sidecar`,
    /// which only matter for loading.
    pub fn from_model(model: Model, options: EngineOptions) -> Result<Self> {
        let (cpu, device) = (Cpu::new(&options.cpu)?, options.device.clone());
        Self::start(model, options, cpu, |load| device_source(&device, load))
    }

    /// Starts an engine for another model on this engine's workers, with its instruction set and
    /// precision. The two engines need no more threads than one.
    ///
    /// # Errors
    /// As [`Engine::from_model`].
    pub fn beside(&self, model: Model, options: EngineOptions) -> Result<Self> {
        let options = EngineOptions { cpu: self.state().device.load.cpu.clone(), ..options };
        let device = options.device.clone();
        Self::start(model, options, self.cpu()?, |load| device_source(&device, load))
    }

    /// Starts an engine that computes on `cpu` and on the device that `source` gives.
    pub(super) fn start(
        mut model: Model,
        options: EngineOptions,
        cpu: Cpu,
        source: impl FnOnce(&DeviceLoadOptions) -> Option<Arc<dyn DeviceSource>>,
    ) -> Result<Self> {
        let context = options.context_of(&model.config);
        options.check()?;
        options.routes.check(&model)?;
        let split = options.split.as_deref().map(PowerInferSplit::open).transpose()?;
        if let Some(split) = &split {
            split.check(&model)?;
        }
        let text = TextCodec::new(&model, options.special_in_content)?;
        let companions = CompanionModels::open(&options, &model, &text.tokenizer)?;
        check_context(&model, companions.draft.as_deref(), context)?;
        // The CPU's share of a placed model and the CPU-only pass never run at the same time, so
        // that they can share workers.
        let device_load = DeviceLoadOptions { workers: Some(cpu.workers()), ..options.device_load() };
        let source = source(&device_load);
        let blind = lacks_profile(&model);
        let counts = options.counts.as_deref().and_then(|folder| KeptCounts::open(folder, &model));
        if let Some(level) = options.level {
            model.skip_inputs(level)?;
        }
        if let Some(counts) = &counts {
            counts.attach(&mut model);
        }
        // A profile of experts is only a start, because each text soon needs other experts.
        let follows = blind || model.config.experts.is_some();
        let adaptive = options.adaptive.unwrap_or(follows && split.is_none());
        let room = WeightRoom::of(&options, &model, companions.draft.as_deref(), companions.tower.as_deref());
        let model = sparsity::prepared_for(model, options.sparsity, split.is_some(), room, cpu.pool());
        let (neurons, recorder) = NeuronBoard::new(model.neuron_shape());
        neurons.set_mass(mass_of(&model));
        let sparsity = SparsityReport::new(options.sparsity, &model, options.recall);
        let inputs = PlanInputs::new(sparsity.mode, context, options.kv_type);
        let inputs = PlanInputs { ram: room.limit(&model), ..inputs };
        let planner = options.planner(inputs, split).with_least_chunk(companions.whole_picture(&model));
        if source.is_none() {
            planner.look_up_machine(device_load.speeds.as_deref(), || device_load.open_cpu(), None);
        }
        planner.adaptation.switch(adaptive, &model, options.recall);
        let workers = cpu.workers();
        let mut forward = Forward::new(Arc::clone(&model), cpu);
        forward.set_chunk(options.chunk);
        forward.set_sparsity(sparsity.mode);
        let settings = RequestedSettings { sparsity: options.sparsity, budget: options.device.budget(), adaptive };
        let state = Arc::new(EngineState {
            figures: EngineFigures::new(&model, companions.tensor_bytes(), neurons, counts),
            device: EngineDevice::new(options.device, device_load, source.is_some()),
            model,
            draft_model: companions.draft,
            tower: companions.tower,
            tower_bytes: OnceLock::new(),
            text,
            planner: Arc::new(planner),
            settings: SettingsMailbox::new(settings),
            sparsity: Mutex::new(sparsity),
            recall: options.recall,
            kv_budget: options.kv_budget,
            chunk: options.chunk,
            routes: options.routes,
            stopped: StopCell::default(),
            pictures: Mutex::default(),
        });
        let companion_cpu = || Cpu::with_workers(&options.cpu, Arc::clone(&workers));
        let n_vocab = state.model.config.n_vocab;
        let drafter = state.drafter().map(|model| Drafter::new(Arc::clone(model), n_vocab, companion_cpu));
        let tower = state.tower.clone().map(|tower| companion_cpu().map(|cpu| PictureProcessor::new(tower, cpu)));
        let (drafter, tower) = (drafter.transpose()?, tower.transpose()?);
        state.check_files()?;
        let (commands, inbox) = mpsc::channel();
        let thread = {
            let (state, commands) = (Arc::clone(&state), commands.clone());
            spawn(move || {
                let processors = worker::EngineProcessors { forward, drafter, tower };
                worker::serve(&state, processors, recorder, source, commands, inbox);
            })?
        };
        let handle = SharedEngine {
            state,
            context,
            kv_type: options.kv_type,
            sessions: AtomicU64::new(0),
            commands,
            thread: Some(thread),
        };
        Ok(Engine { handle: Arc::new(handle) })
    }

    /// Starts a conversation with an empty KV cache of its own.
    ///
    /// [`Error::Invalid`] if the model or its draft model does not support the context,
    /// [`Error::Memory`] if the cache does not fit, [`Error::Stopped`] after the engine has
    /// stopped.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        let state = &self.handle.state;
        let context = options.context.unwrap_or(self.handle.context);
        check_context(&state.model, state.draft_model.as_deref(), context)?;
        let kv = KvCache::new(&state.model.config, context, options.kv_type.unwrap_or(self.handle.kv_type))?;
        let cache_of = |model: &Arc<Model>| CacheBytes::of(&model.config, context, kv.ty()).total();
        let of_drafter = state.drafter().map_or(0, cache_of);
        let id = self.handle.sessions.fetch_add(1, Relaxed);
        let session = Session::new(self.clone(), id, context);
        let (context, cancelled, priority) =
            (Box::new(SessionContext::new(kv, of_drafter)), session.cancelled(), options.priority);
        self.command(EngineCommand::Open { id, context, cancelled, priority })?;
        Ok(session)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.handle.state.model
    }

    /// The draft model, if there is one.
    pub fn draft_model(&self) -> Option<&Arc<Model>> {
        self.handle.state.draft_model.as_ref()
    }

    /// The vision tower of the model, if it has one.
    pub fn tower(&self) -> Option<&Arc<Tower>> {
        self.handle.state.tower.as_ref()
    }

    /// The bytes of device memory that the largest picture takes while a device computes it beside
    /// the model. 0 if no device computes pictures of this model.
    pub fn picture_bytes(&self) -> u64 {
        self.state().tower_bytes()
    }

    /// The number of tokens that `picture` takes in a prompt. Tokens that follow its parts, such as
    /// ends of rows, count. The marks before and after the picture do not.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the model has no vision tower, or if the tower does not take such a
    /// picture.
    pub fn picture_tokens(&self, picture: &Picture) -> Result<usize> {
        let tower = self.state().tower()?;
        let parts = tower.parts(picture.width(), picture.height())?;
        Ok(parts.iter().map(|part| part.grid.tokens() + part.after.len()).sum())
    }

    /// The model's sizes and variants.
    pub fn config(&self) -> &ModelConfig {
        &self.model().config
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.handle.state.text.tokenizer
    }

    /// The model's chat template, or the fallback template.
    pub fn chat_template(&self) -> &ChatTemplate {
        &self.handle.state.text.template
    }

    /// True if the model has a chat template of its own, even if the template fails and ours
    /// replaces it.
    pub fn has_chat_template(&self) -> bool {
        match self.chat_template().origin() {
            TemplateOrigin::Model(_) => true,
            TemplateOrigin::Fallback { failure, .. } => failure.is_some(),
        }
    }

    /// Default context of its sessions, in tokens.
    pub fn context(&self) -> usize {
        self.handle.context
    }

    /// Largest number of bytes for the KV caches of all sessions; `None` for no limit.
    pub fn kv_budget(&self) -> Option<u64> {
        self.handle.state.kv_budget
    }

    /// Default type of its sessions' KV caches.
    pub fn kv_type(&self) -> KvType {
        self.handle.kv_type
    }

    /// Bytes that the engine holds now.
    pub fn memory(&self) -> MemoryReport {
        let now = self.telemetry();
        MemoryReport { weights: now.weight_bytes, kv: now.kv_bytes, scratch: now.scratch_bytes }
    }

    /// Current rates, counters and memory. Does not wait.
    pub fn telemetry(&self) -> Snapshot {
        self.handle.state.figures.telemetry.snapshot()
    }

    /// The firings of neurons, token by token, and each neuron's firing frequency. The engine does
    /// not wait for readers.
    pub fn neurons(&self) -> &Arc<NeuronBoard> {
        &self.handle.state.figures.neurons
    }

    /// The reason why the engine has stopped, if it has. [`Error::Stopped`] follows an internal
    /// fault, [`Error::FileLost`] the loss of a mapped model file. Every request gets this error,
    /// and the model must be opened again.
    pub fn stopped(&self) -> Option<Error> {
        self.handle.state.stop_error()
    }

    pub(super) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.handle))
    }

    pub(super) fn state(&self) -> &EngineState {
        &self.handle.state
    }

    /// Stops the engine by a panic of its thread, as an internal fault would, for tests (like
    /// [`Faults`](thermocline_gpu::Faults) for a device). Every request then gets
    /// [`Error::Stopped`], and the model must be opened again.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn break_down(&self) {
        // The thread may have ended already.
        let _ = self.command(EngineCommand::Panic);
    }

    pub(super) fn stop_cell(&self) -> &StopCell {
        &self.handle.state.stopped
    }

    pub(super) fn command(&self, command: EngineCommand) -> Result<()> {
        match self.stopped() {
            Some(error) => Err(error),
            None => self.handle.commands.send(command).map_err(|_| stopped_error(self.stop_cell())),
        }
    }
}

/// Starts the engine's thread.
fn spawn(serve: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name("thermocline-engine".to_owned());
    thread.spawn(serve).map_err(|error| Error::Stopped(format!("the thread of the engine did not start: {error}")))
}

/// Checks that the model and its draft model support a context of `context` tokens.
fn check_context(model: &Model, draft: Option<&Model>, context: usize) -> Result<()> {
    check_positions("context", model, context)?;
    draft.map_or(Ok(()), |draft| check_positions("context of the draft model", draft, context))
}

/// Checks that a model has `context` positions. `what` names the context in an error.
fn check_positions(what: &'static str, model: &Model, context: usize) -> Result<()> {
    let most = match (&model.config.position, &model.weights.position_embedding) {
        (Position::Learned { offset }, Some(matrix)) => matrix.rows().saturating_sub(*offset),
        _ => usize::MAX,
    };
    if (1..=most).contains(&context) {
        return Ok(());
    }
    let expected = match most {
        usize::MAX => "at least 1 token".to_owned(),
        most => format!("1 to {most} tokens, the positions that the model has learned"),
    };
    Err(Error::invalid(what, expected, context))
}

#[cfg(test)]
mod tests;
