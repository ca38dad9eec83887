//! The engine, a model with the thread that computes it, and its sessions.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    DeviceChoice, DeviceLoadOptions, DeviceStatus, EngineOptions, Event, LivePlanner, LoadStage, NeuronFrequencies,
    Request, SessionOptions, SparsityChoice, SparsityReport,
    budget_forecast::{DecodeConditions, DecodeRates},
    context::Context,
    device::StatusBoard,
    ffn_reads::FfnSize,
    loader::{DeviceSource, device_source},
    neuron_norms::mass_of,
    request::{EventSender, StopCause, StopCell, stopped_error},
    sampling::{Grammar, GrammarCompiler, GrammarState},
    settings::{RequestedSettings, SettingsMailbox},
    sparsity,
    step_times::TimedTokens,
    worker::{self, Command, QueuedRequest},
};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
    model::{LoadOptions, Model, ModelConfig, Position},
    placement::{PowerInferSplit, Resident, SplitReport},
    runtime::{Forward, KvCache, KvType, Sparsity},
    sparsity::{
        KeptCounts, lacks_profile,
        sidecar::{Attachment, attach},
    },
    telemetry::{Snapshot, Telemetry, neurons::NeuronBoard},
    tokenizer::{ChatTemplate, TemplateOrigin, Tokenizer},
};

/// Bytes that an engine holds, those on a device included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// Weights, mapped (shared with the system's page cache) or read.
    pub weights: u64,
    /// KV caches of all sessions.
    pub kv: u64,
    /// Buffers of the forward pass.
    pub scratch: u64,
}

/// The state that an engine's handles and its thread share.
#[derive(Debug)]
pub(super) struct EngineState {
    pub model: Arc<Model>,
    pub tokenizer: Tokenizer,
    pub template: ChatTemplate,
    /// Control tokens in what is said count as such.
    pub special_in_content: bool,
    pub chunk: usize,
    pub telemetry: Telemetry,
    pub neurons: Arc<NeuronBoard>,
    pub device: StatusBoard,
    pub settings: SettingsMailbox,
    pub planner: Arc<LivePlanner>,
    pub decode_rates: DecodeRates,
    pub timed_tokens: TimedTokens,
    /// The device chosen last.
    pub choice: Mutex<DeviceChoice>,
    /// The parts of the model on the device now.
    pub resident: Mutex<Option<Arc<Resident>>>,
    /// Options by which any device is loaded.
    pub device_load: DeviceLoadOptions,
    pub recall: f32,
    /// Most bytes of all caches.
    pub kv_budget: Option<u64>,
    pub sparsity: Mutex<SparsityReport>,
    pub stopped: StopCell,
    /// Made for the first request with a grammar.
    pub grammars: OnceLock<GrammarCompiler>,
    /// Firings kept for the next run.
    pub counts: Option<KeptCounts>,
    /// Of every layer, what its FFN reads with nothing skipped.
    pub ffn_sizes: Vec<FfnSize>,
    /// True once the neurons are being weighed by [`Engine::weigh_neurons`].
    pub weighed: AtomicBool,
}

impl EngineState {
    /// The state of `grammar` before an answer's first token.
    pub fn compile_grammar(&self, grammar: &Grammar) -> Result<GrammarState> {
        if self.grammars.get().is_none() {
            let compiler = GrammarCompiler::new(&self.tokenizer, self.model.config.n_vocab)?;
            // Another thread may have been faster.
            let _ = self.grammars.set(compiler);
        }
        match self.grammars.get() {
            Some(compiler) => compiler.compile(grammar),
            None => Err(Error::invalid("grammar", "a compiler for it", "none")),
        }
    }

    /// The error of every request, if the engine has stopped. A mapped file that is lost stops it.
    pub fn stop_error(&self) -> Option<Error> {
        if self.stopped.get().is_none()
            && let Err(Error::FileLost { path }) = self.model.checkpoint.files().check()
        {
            tracing::error!(path = %path.display(), "a file of the model is lost");
            // Another thread may have been faster.
            let _ = self.stopped.set(StopCause::FileLost(path));
        }
        self.stopped.get().map(StopCause::error)
    }

    /// The conditions under which tokens are decoded now, in `mode`.
    pub fn decode_conditions(&self, mode: Sparsity) -> DecodeConditions {
        let device = match self.device.read() {
            DeviceStatus::Gpu(memory) => Some((memory.adapter, memory.budget)),
            _ => None,
        };
        DecodeConditions { mode, device }
    }
}

/// A model ready to run; a handle that may be cloned and used from any thread. The engine ends with its last handle and session:
/// dropping that waits until the thread has stopped its work, which takes no longer than a cancellation.
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

/// The engine that its handles keep: its end stops the thread.
#[derive(Debug)]
struct SharedEngine {
    state: Arc<EngineState>,
    context: usize,
    kv_type: KvType,
    sessions: AtomicU64,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

/// A handle that does not keep the engine.
#[derive(Debug)]
pub(super) struct WeakEngine(Weak<SharedEngine>);

impl WeakEngine {
    /// The engine, if another handle still keeps it.
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(|handle| Engine { handle })
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.commands.send(Command::Shutdown);
        if let Some(thread) = self.thread.take() {
            // Its panics were reported where they happened.
            let _ = thread.join();
        }
    }
}

impl Engine {
    /// Opens a GGUF file, a PowerInfer GGUF or a Hugging Face folder.
    pub fn open(path: &Path, options: EngineOptions) -> Result<Self> {
        let load = LoadOptions { read_mode: options.read_mode, activation: options.activation };
        let mut model = Model::open(path, &load)?;
        if let Attachment::Ignored { path, reason } = attach(&mut model, &options.sidecar, options.read_mode)? {
            tracing::warn!(path = %path.display(), reason, "the sidecar is not used");
        }
        Self::from_model(model, options)
    }

    /// Starts an engine with a loaded model. `options.activation`, `options.read_mode` and `options.sidecar` only matter when a model
    /// is loaded.
    pub fn from_model(model: Model, options: EngineOptions) -> Result<Self> {
        let (cpu, device) = (Cpu::new(&options.cpu)?, options.device.clone());
        Self::start(model, options, cpu, |load| device_source(&device, load))
    }

    /// Starts an engine for another model on this engine's workers, with its instruction set and precision: the two need no more
    /// threads than one.
    ///
    /// # Errors
    /// As [`Engine::from_model`].
    pub fn beside(&self, model: Model, options: EngineOptions) -> Result<Self> {
        let options = EngineOptions { cpu: self.state().device_load.cpu.clone(), ..options };
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
        check_context(&model, context)?;
        options.check()?;
        let split = options.split.as_deref().map(PowerInferSplit::open).transpose()?;
        if let Some(split) = &split {
            split.check(&model)?;
        }
        let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
        let template = ChatTemplate::from_checkpoint(&model.checkpoint, &tokenizer);
        // The CPU's part of a model on a device is computed when the CPU alone computes nothing.
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
        let adaptive = options.adaptive.unwrap_or(blind && split.is_none());
        let model = sparsity::prepared_for(model, options.sparsity, split.is_some(), cpu.pool());
        let telemetry = Telemetry::default();
        telemetry.weight_bytes.set(model.checkpoint.tensor_bytes());
        let device = StatusBoard::new(match source {
            Some(_) => DeviceStatus::Loading(LoadStage::Opening),
            None => DeviceStatus::Cpu { reason: None },
        });
        let (neurons, recorder) = NeuronBoard::new(model.neuron_shape());
        neurons.set_mass(mass_of(&model));
        let sparsity = SparsityReport::new(options.sparsity, &model, options.recall);
        let planner = options.planner(sparsity.mode, context, split);
        if source.is_none() {
            planner.look_up_machine(device_load.speeds.as_deref(), || device_load.open_cpu(), None);
        }
        planner.adaptation.switch(adaptive, &model, options.recall);
        let mut forward = Forward::new(Arc::clone(&model), cpu);
        forward.set_chunk(options.chunk);
        forward.set_sparsity(sparsity.mode);
        let settings = RequestedSettings { sparsity: options.sparsity, budget: options.device.budget(), adaptive };
        let state = Arc::new(EngineState {
            ffn_sizes: FfnSize::of_layers(&model),
            model,
            tokenizer,
            template,
            special_in_content: options.special_in_content,
            chunk: options.chunk,
            telemetry,
            neurons,
            device,
            settings: SettingsMailbox::new(settings),
            planner: Arc::new(planner),
            decode_rates: DecodeRates::default(),
            timed_tokens: TimedTokens::default(),
            choice: Mutex::new(options.device),
            resident: Mutex::default(),
            device_load,
            recall: options.recall,
            kv_budget: options.kv_budget,
            sparsity: Mutex::new(sparsity),
            stopped: StopCell::default(),
            grammars: OnceLock::new(),
            counts,
            weighed: AtomicBool::new(false),
        });
        state.model.checkpoint.files().check()?;
        let (commands, inbox) = mpsc::channel();
        let thread = {
            let (state, commands) = (Arc::clone(&state), commands.clone());
            spawn(move || worker::serve(&state, forward, recorder, source, commands, inbox))?
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

    /// Begins a conversation with an empty KV cache of its own.
    ///
    /// [`Error::Invalid`] for a context the model cannot have, [`Error::Memory`] when there is no room for the cache,
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        let state = &self.handle.state;
        let context = options.context.unwrap_or(self.handle.context);
        check_context(&state.model, context)?;
        let kv = KvCache::new(&state.model.config, context, options.kv_type.unwrap_or(self.handle.kv_type))?;
        let id = self.handle.sessions.fetch_add(1, Relaxed);
        let session = Session::new(self.clone(), id, context);
        let (context, cancelled, priority) = (Box::new(Context::new(kv)), session.cancelled(), options.priority);
        self.command(Command::Open { id, context, cancelled, priority })?;
        Ok(session)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.handle.state.model
    }

    /// The model's sizes and variants.
    pub fn config(&self) -> &ModelConfig {
        &self.model().config
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.handle.state.tokenizer
    }

    /// The model's chat template, or the fallback.
    pub fn chat_template(&self) -> &ChatTemplate {
        &self.handle.state.template
    }

    /// True if the model brings a chat template of its own, even one that fails and has one of ours in its place.
    pub fn has_chat_template(&self) -> bool {
        match self.chat_template().origin() {
            TemplateOrigin::Model(_) => true,
            TemplateOrigin::Fallback { failure, .. } => failure.is_some(),
        }
    }

    /// Context of its sessions, in tokens, unless they ask for another.
    pub fn context(&self) -> usize {
        self.handle.context
    }

    /// Most bytes of the KV caches of all sessions, if they are limited.
    pub fn kv_budget(&self) -> Option<u64> {
        self.handle.state.kv_budget
    }

    /// Type of its sessions' KV caches, unless they ask for another.
    pub fn kv_type(&self) -> KvType {
        self.handle.kv_type
    }

    /// Bytes held now.
    pub fn memory(&self) -> MemoryReport {
        let now = self.telemetry();
        MemoryReport { weights: now.weight_bytes, kv: now.kv_bytes, scratch: now.scratch_bytes }
    }

    /// Rates, counters and memory now. Does not wait.
    pub fn telemetry(&self) -> Snapshot {
        self.handle.state.telemetry.snapshot()
    }

    /// The firings of neurons, token by token, and how often each fires. The engine does not wait for readers.
    pub fn neurons(&self) -> &Arc<NeuronBoard> {
        &self.handle.state.neurons
    }

    /// The processor that it computes on now. Does not wait.
    pub fn device(&self) -> DeviceStatus {
        self.handle.state.device.read()
    }

    /// The status as soon as it is not [`DeviceStatus::Loading`], or after `longest`. Requests wait by themselves.
    pub fn wait_for_device(&self, longest: Duration) -> DeviceStatus {
        self.handle.state.device.wait_until_loaded(longest)
    }

    /// Switches to another device. A load under way is cancelled. While the other device is loaded, the CPU does the work; generations
    /// go on throughout. The choice's budget replaces that of [`Engine::set_vram_budget`].
    pub fn set_device(&self, choice: &DeviceChoice) -> Result<()> {
        let budget = choice.budget();
        let state = &self.handle.state;
        // The command below applies all settings, too.
        let _ = state.settings.change(|settings| settings.budget = budget);
        *state.choice.lock() = choice.clone();
        state.decode_rates.forget_device();
        state.timed_tokens.forget();
        self.command(Command::SwitchDevice { source: device_source(choice, &state.device_load) })
    }

    /// Tries the chosen device again, if it is not in use: after the engine has given it up as lost or full.
    pub fn retry_device(&self) -> Result<()> {
        self.command(Command::RetryDevice)
    }

    /// Sets the most bytes of device memory to hold; with 0 everything is in RAM. Returns at once; between two tokens the engine then
    /// releases the excess, and [`DeviceStatus::Gpu`] shows the new budget once no more than that is held. Weights that it has room
    /// for are uploaded little by little, while generations go on. Of several calls in a row only the last may take effect.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_vram_budget(&self, bytes: u64) -> Result<()> {
        self.change_settings(|settings| settings.budget = Some(bytes))
    }

    /// The budget requested last; `None`: all that is free. [`Engine::device`] has the one in force.
    pub fn vram_budget(&self) -> Option<u64> {
        self.handle.state.settings.latest().budget
    }

    /// The parts of the model that are in VRAM now, neuron by neuron; `None` if none is. Does not wait.
    pub fn resident(&self) -> Option<Arc<Resident>> {
        self.handle.state.resident.lock().clone()
    }

    /// How far [`EngineOptions::split`] is followed; `None` without one. Does not wait.
    pub fn split(&self) -> Option<SplitReport> {
        let resident = self.resident().unwrap_or_default();
        self.handle.state.planner.split().map(|split| SplitReport::new(split, &resident))
    }

    /// Firing frequencies of `layer`: the profile's, or, without one, those that the engine has counted. `None` as long as none are
    /// known.
    pub fn frequencies(&self, layer: usize) -> Option<NeuronFrequencies> {
        NeuronFrequencies::of_layer(self.model(), self.neurons(), layer)
    }

    /// Changes the sparsity mode from the next token on.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_sparsity(&self, choice: SparsityChoice) -> Result<()> {
        self.change_settings(|settings| settings.sparsity = choice)
    }

    /// The sparsity mode in use, and why. Does not wait.
    pub fn sparsity(&self) -> SparsityReport {
        self.handle.state.sparsity.lock().clone()
    }

    /// The sparsity mode that `choice` would be for this model, and why. Changes nothing.
    pub fn sparsity_of(&self, choice: SparsityChoice) -> SparsityReport {
        SparsityReport::new(choice, self.model(), self.recall())
    }

    /// Fraction of the firings that predictors have to find.
    pub fn recall(&self) -> f32 {
        self.handle.state.recall
    }

    /// Switches [`EngineOptions::adaptive`]. Neurons swapped meanwhile stay where they are.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_adaptive(&self, on: bool) -> Result<()> {
        self.change_settings(|settings| settings.adaptive = on)
    }

    /// True if adaptation is requested.
    pub fn adaptive(&self) -> bool {
        self.handle.state.settings.latest().adaptive
    }

    /// The reason why the engine has stopped, if it has: [`Error::Stopped`] after a fault inside it, [`Error::FileLost`] if a
    /// mapped file of the model is lost. Every request gets this error, and the model has to be opened again.
    pub fn stopped(&self) -> Option<Error> {
        self.handle.state.stop_error()
    }

    pub(super) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.handle))
    }

    pub(super) fn state(&self) -> &EngineState {
        &self.handle.state
    }

    /// Stops the engine as a fault inside it would, by a panic of its thread, for tests of what happens then (like
    /// [`Faults`](crate::gpu::Faults) of a device): every request gets [`Error::Stopped`], and the model has to be opened again.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn break_down(&self) {
        // The thread may have ended already.
        let _ = self.command(Command::Panic);
    }

    pub(super) fn stop_cell(&self) -> &StopCell {
        &self.handle.state.stopped
    }

    fn change_settings(&self, change: impl FnOnce(&mut RequestedSettings)) -> Result<()> {
        if self.handle.state.settings.change(change) {
            return self.command(Command::ApplySettings);
        }
        self.stopped().map_or(Ok(()), Err)
    }

    pub(super) fn command(&self, command: Command) -> Result<()> {
        match self.stopped() {
            Some(error) => Err(error),
            None => self.handle.commands.send(command).map_err(|_| stopped_error(self.stop_cell())),
        }
    }
}

/// One conversation with its own KV cache. Dropping it cancels its requests and frees the cache.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    id: u64,
    context: usize,
    requests: AtomicU64,
    /// Requests with a lower number than this are cancelled.
    cancelled: Arc<AtomicU64>,
}

impl Session {
    pub(super) fn new(engine: Engine, id: u64, context: usize) -> Self {
        Session { engine, id, context, requests: AtomicU64::new(0), cancelled: Arc::default() }
    }

    pub(super) fn cancelled(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.cancelled)
    }

    /// Generates an answer. The events end with [`Event::Done`] or [`Event::Error`]; all errors arrive there. Requests of one session
    /// run one after the other, those of several take turns token by token. Dropping the receiver cancels.
    ///
    /// Tokens of the prompt that the cache already holds are not computed again, so a conversation is continued by sending it whole. The result is the same as from an empty cache, up to float summation order.
    pub fn generate(&self, request: Request) -> Receiver<Event> {
        let (events, receiver) = EventSender::new(self.engine.stop_cell());
        let number = self.requests.fetch_add(1, SeqCst);
        // If it cannot be delivered, the event sender says so as it is dropped.
        let _ = self.engine.command(Command::Generate {
            id: self.id,
            request: Box::new(QueuedRequest { number, request, events, requested_at: Instant::now() }),
        });
        receiver
    }

    /// Cancels all requests of this session so far. The running generation ends within one token, or within one layer
    /// of a prompt; its events end with [`StopReason::Cancelled`](super::StopReason::Cancelled), and the session stays usable.
    pub fn cancel(&self) {
        self.cancelled.fetch_max(self.requests.load(SeqCst), SeqCst);
        // The engine may be asleep until a device is loaded. One that has stopped has nothing left to cancel.
        let _ = self.engine.command(Command::Wake);
    }

    /// Its number, by which the board of neurons tells sessions apart.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Length of its context, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.cancelled.store(u64::MAX, SeqCst);
        // An engine that has stopped has no caches to free.
        let _ = self.engine.command(Command::Close { id: self.id });
    }
}

/// Starts the engine's thread.
fn spawn(serve: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name("thermocline-engine".to_owned());
    thread.spawn(serve).map_err(|error| Error::Stopped(format!("its thread did not start: {error}")))
}

/// Checks that the model can have a context of `context` tokens.
fn check_context(model: &Model, context: usize) -> Result<()> {
    let most = match (&model.config.position, &model.weights.position_embedding) {
        (Position::Learned { offset }, Some(matrix)) => matrix.rows().saturating_sub(*offset),
        _ => usize::MAX,
    };
    if (1..=most).contains(&context) {
        return Ok(());
    }
    let expected = match most {
        usize::MAX => "at least 1 token".to_owned(),
        most => format!("1 to {most} tokens (the model has learned no more positions)"),
    };
    Err(Error::invalid("context", expected, context))
}

#[cfg(test)]
mod tests;
