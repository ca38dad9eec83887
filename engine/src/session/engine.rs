//! The engine: a model, its tokenizer, and the thread that computes.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    DeviceChoice, DeviceStatus, EngineOptions, Frequencies, Session, SessionOptions, SparsityChoice, SparsityReport,
    context::Context,
    device::Board,
    loader::{Source, source},
    observed::{Observed, State},
    outbox::{Stopped, stopped_error},
    place::{PlaceOptions, Terms},
    sparsity,
    split::SplitReport,
    wish::{Wish, Wishes},
    worker::{self, Command},
};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
    model::{Forward, KvCache, KvType, LoadOptions, Model, ModelConfig, Position, Resident, Sparsity},
    sparsity::{
        placement::Split,
        sidecar::{Attachment, attach},
    },
    telemetry::{Snapshot, Telemetry, neurons::NeuronBoard},
    tokenizer::{ChatTemplate, TemplateOrigin, Tokenizer},
};

/// Bytes the engine holds; those on a device are among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// Weights: mapped (shared with the system's page cache) or read.
    pub weights: u64,
    /// KV caches of all sessions.
    pub kv: u64,
    /// Buffers of the forward pass.
    pub scratch: u64,
}

/// What the handles and the engine thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub model: Arc<Model>,
    pub tokenizer: Tokenizer,
    pub template: ChatTemplate,
    pub chunk: usize,
    pub telemetry: Telemetry,
    pub neurons: Arc<NeuronBoard>,
    pub device: Board,
    pub wishes: Wishes,
    pub terms: Arc<Terms>,
    pub observed: Observed,
    /// The device asked for last.
    pub choice: Mutex<DeviceChoice>,
    /// What is on the device now.
    pub resident: Mutex<Option<Arc<Resident>>>,
    /// How devices are opened, but for which.
    pub place: PlaceOptions,
    pub recall: f32,
    pub sparsity: Mutex<SparsityReport>,
    pub stopped: Stopped,
}

impl Shared {
    /// The state that tokens are decoded in now, in `mode`.
    pub fn state(&self, mode: Sparsity) -> State {
        let device = match self.device.read() {
            DeviceStatus::Gpu(memory) => Some((memory.adapter, memory.budget)),
            _ => None,
        };
        State { mode, device }
    }
}

/// A model ready to run; a handle that may be cloned and used from any thread. The engine ends with its last handle and
/// session: dropping that waits until the thread has put down its work, which takes no longer than a cancellation.
#[derive(Debug, Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    context: usize,
    kv_type: KvType,
    sessions: AtomicU64,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

/// An engine that may be gone.
#[derive(Debug)]
pub(super) struct WeakEngine(Weak<Handle>);

impl WeakEngine {
    /// The engine, if anybody else still has it.
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(|handle| Engine { handle })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // If the thread is gone already, there is nobody to tell.
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

    /// Takes a loaded model. `options.activation`, `options.read_mode` and `options.sidecar` had their say when it was loaded.
    pub fn from_model(model: Model, options: EngineOptions) -> Result<Self> {
        let device = options.device.clone();
        Self::start(model, options, |place| source(&device, place))
    }

    /// `source` gets what a device is opened with, and tells where it comes from.
    pub(super) fn start(
        model: Model,
        options: EngineOptions,
        source: impl FnOnce(&PlaceOptions) -> Option<Arc<dyn Source>>,
    ) -> Result<Self> {
        let context = options.context_of(&model.config);
        check_context(&model, context)?;
        if options.chunk == 0 {
            return Err(Error::invalid("chunk", "at least 1 token", 0));
        }
        if !(0.0..=1.0).contains(&options.recall) {
            return Err(Error::invalid("recall", "a share from 0 to 1", options.recall));
        }
        let split = options.split.as_deref().map(Split::open).transpose()?;
        if let Some(split) = &split {
            split.check(&model)?;
        }
        let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
        let template = ChatTemplate::from_checkpoint(&model.checkpoint, &tokenizer);
        let cpu = Cpu::new(&options.cpu)?;
        // The CPU's part of a model on a device is computed when the CPU alone computes nothing.
        let place = PlaceOptions { workers: Some(cpu.workers()), ..options.place() };
        let source = source(&place);
        let model = sparsity::turned(model, options.sparsity, split.is_some(), cpu.pool());
        let telemetry = Telemetry::default();
        telemetry.weight_bytes.set(model.checkpoint.tensor_bytes());
        let stopped = Stopped::default();
        let device = Board::new(match source {
            Some(_) => DeviceStatus::Loading { done: 0, total: 0 },
            None => DeviceStatus::Cpu { reason: None },
        });
        let (neurons, recorder) = NeuronBoard::new(model.neuron_shape());
        let sparsity = SparsityReport::new(options.sparsity, &model, options.recall);
        let mut terms = Terms::new(sparsity.mode, context, options.kv_type).streaming(options.stream_prompts);
        if let Some(machine) = options.machine.clone() {
            terms = terms.on(machine);
        }
        if let Some(split) = split {
            terms = terms.following(split);
        }
        terms.set_chunk(options.chunk);
        if source.is_none() {
            terms.look_up(&place, None);
        }
        terms.adapt.switch(options.adaptive, &model, options.recall);
        let mut forward = Forward::new(Arc::clone(&model), cpu);
        forward.set_chunk(options.chunk);
        forward.set_sparsity(sparsity.mode);
        let wish = Wish { sparsity: options.sparsity, budget: options.device.budget(), adaptive: options.adaptive };
        let shared = Arc::new(Shared {
            model,
            tokenizer,
            template,
            chunk: options.chunk,
            telemetry,
            neurons,
            device,
            wishes: Wishes::new(wish),
            terms: Arc::new(terms),
            observed: Observed::default(),
            choice: Mutex::new(options.device),
            resident: Mutex::default(),
            place,
            recall: options.recall,
            sparsity: Mutex::new(sparsity),
            stopped,
        });
        let (commands, inbox) = mpsc::channel();
        let thread = {
            let (shared, commands) = (Arc::clone(&shared), commands.clone());
            let thread = thread::Builder::new().name("thermocline-engine".to_owned());
            thread
                .spawn(move || worker::serve(&shared, forward, recorder, source, commands, inbox))
                .map_err(|error| Error::Stopped(format!("its thread did not start: {error}")))?
        };
        let handle = Handle {
            shared,
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
        let shared = &self.handle.shared;
        let context = options.context.unwrap_or(self.handle.context);
        check_context(&shared.model, context)?;
        let kv = KvCache::new(&shared.model.config, context, options.kv_type.unwrap_or(self.handle.kv_type))?;
        let id = self.handle.sessions.fetch_add(1, Relaxed);
        let session = Session::new(self.clone(), id, context);
        self.command(Command::Open { id, context: Context::new(kv), cancelled: session.cancelled() })?;
        Ok(session)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.handle.shared.model
    }

    /// Its sizes and variants.
    pub fn config(&self) -> &ModelConfig {
        &self.model().config
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.handle.shared.tokenizer
    }

    /// Its chat template, or the fallback.
    pub fn chat_template(&self) -> &ChatTemplate {
        &self.handle.shared.template
    }

    /// Whether the model brought a chat template of its own that works.
    pub fn has_chat_template(&self) -> bool {
        matches!(self.chat_template().origin(), TemplateOrigin::Model(_))
    }

    /// Context of its sessions, in tokens, unless they ask for another.
    pub fn context(&self) -> usize {
        self.handle.context
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

    /// Rates, counters and memory now. Never waits.
    pub fn telemetry(&self) -> Snapshot {
        self.handle.shared.telemetry.snapshot()
    }

    /// Which neurons fire, token by token, and how often each does. The engine never waits for who reads it.
    pub fn neurons(&self) -> &Arc<NeuronBoard> {
        &self.handle.shared.neurons
    }

    /// Where it computes now. Never waits.
    pub fn device(&self) -> DeviceStatus {
        self.handle.shared.device.read()
    }

    /// Where it computes as soon as that is not [`DeviceStatus::Loading`] any more, or after `longest`. Requests wait by
    /// themselves.
    pub fn wait_for_device(&self, longest: Duration) -> DeviceStatus {
        self.handle.shared.device.settled(longest)
    }

    /// Computes elsewhere from now on. What is loading is given up. While another device is loaded, the CPU does the work;
    /// generations go on throughout. The choice's budget replaces that of [`Engine::set_vram_budget`].
    pub fn set_device(&self, choice: &DeviceChoice) -> Result<()> {
        let budget = choice.budget();
        // With the command below the thread looks at all wishes anyway.
        let _ = self.handle.shared.wishes.change(|wish| wish.budget = budget);
        *self.handle.shared.choice.lock().unwrap_or_else(PoisonError::into_inner) = choice.clone();
        self.handle.shared.observed.forget_device();
        self.command(Command::Device { source: source(choice, &self.handle.shared.place) })
    }

    /// Tries the chosen device again, if it is not in use: after the engine has given it up for lost, or full.
    pub fn retry_device(&self) -> Result<()> {
        self.command(Command::RetryDevice)
    }

    /// Holds at most `bytes` of device memory from now on; with 0 everything is in RAM. Returns at once; between two tokens
    /// the engine then releases what is over, and [`DeviceStatus::Gpu`] shows the new budget once no more than that is held.
    /// What the budget has room for arrives little by little, while generations go on. Of several calls in a row only the last
    /// may take effect.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_vram_budget(&self, bytes: u64) -> Result<()> {
        self.wish(|wish| wish.budget = Some(bytes))
    }

    /// The budget asked for last; `None`: what is free. What is in force, [`Engine::device`] tells.
    pub fn vram_budget(&self) -> Option<u64> {
        self.handle.shared.wishes.read().budget
    }

    /// What of the model is in VRAM now, neuron by neuron; `None` if nothing is. Never waits.
    pub fn placement(&self) -> Option<Arc<Resident>> {
        self.handle.shared.resident.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What has become of [`EngineOptions::split`]; `None` where none is followed. Never waits.
    pub fn split(&self) -> Option<SplitReport> {
        let resident = self.placement().unwrap_or_default();
        self.handle.shared.terms.split().map(|split| SplitReport::new(split, &resident))
    }

    /// How often the neurons of `layer` fire: as the profile says, or, where there is none, as the engine has counted.
    /// `None` for a layer of which nothing is known yet.
    pub fn frequencies(&self, layer: usize) -> Option<Frequencies> {
        Frequencies::of(self.model(), self.neurons(), layer)
    }

    /// Skips other neurons from the next token on.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_sparsity(&self, choice: SparsityChoice) -> Result<()> {
        self.wish(|wish| wish.sparsity = choice)
    }

    /// What is skipped now, and why. Never waits.
    pub fn sparsity(&self) -> SparsityReport {
        self.handle.shared.sparsity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Share of the firings that predictors have to find.
    pub fn recall(&self) -> f32 {
        self.handle.shared.recall
    }

    /// Switches [`EngineOptions::adaptive`]. What was swapped meanwhile stays where it is.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_adaptive(&self, on: bool) -> Result<()> {
        self.wish(|wish| wish.adaptive = on)
    }

    /// Whether it adapts.
    pub fn adaptive(&self) -> bool {
        self.handle.shared.wishes.read().adaptive
    }

    /// Why the engine has stopped, if it has: after a fault inside it, every request gets this as [`Error::Stopped`], and
    /// the model has to be opened again.
    pub fn stopped(&self) -> Option<&str> {
        self.handle.shared.stopped.get().map(String::as_str)
    }

    pub(super) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.handle))
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Stops the engine as a fault inside it would, by a panic of its thread. Like [`Faults`](crate::gpu::Faults) of a device it is for
    /// whoever wants to see what happens then: every request gets [`Error::Stopped`], and the model has to be opened again.
    pub fn break_down(&self) {
        // A thread that is gone already has nothing to break.
        let _ = self.command(Command::Panic);
    }

    pub(super) fn stop_reason(&self) -> &Stopped {
        &self.handle.shared.stopped
    }

    fn wish(&self, change: impl FnOnce(&mut Wish)) -> Result<()> {
        if self.handle.shared.wishes.change(change) {
            return self.command(Command::Wish);
        }
        match self.stopped() {
            Some(_) => Err(stopped_error(self.stop_reason())),
            None => Ok(()),
        }
    }

    pub(super) fn command(&self, command: Command) -> Result<()> {
        if self.stopped().is_some() {
            return Err(stopped_error(self.stop_reason()));
        }
        self.handle.commands.send(command).map_err(|_| stopped_error(self.stop_reason()))
    }
}

/// Whether the model can see `context` tokens.
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
