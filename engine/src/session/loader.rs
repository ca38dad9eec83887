//! Loads a model into a device on a separate thread: opens the device, plans and uploads.

use std::{
    any::Any,
    fmt::Debug,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::Sender,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    DeviceChoice, LivePlanner,
    device::{DeviceMemory, LoadStage},
    device_drafter::{DeviceDrafter, load_drafter},
    engine_state::EngineState,
    tested_device::ensure_tested,
    worker::{EngineCommand, panic_message},
};
use thermocline_base::error::{Error, GpuFailure, Result};
use thermocline_cpu::{Cpu, CpuOptions, InputPrecision, ThreadPool};
use thermocline_gpu::{AdapterKind, Fallback, Faults, Gpu, GpuOptions, Purpose};
use thermocline_model::Model;
use thermocline_run::{
    device,
    hybrid::{self, HybridProcessor},
    placement::{GpuUse, Granularity, Placement, Streaming},
    runtime::Processor,
};

/// Number of attempts to load. A plan that needs more bytes than expected is retried with a smaller
/// target.
const ATTEMPTS: usize = 4;

/// Options of loading a model into a GPU.
#[derive(Debug, Clone, Default)]
pub struct DeviceLoadOptions {
    /// The GPU, and how many of its bytes to use.
    pub gpu: GpuOptions,
    /// The CPU for weights that are not resident.
    pub cpu: CpuOptions,
    /// Existing CPU threads to share; `None` starts new threads.
    pub workers: Option<Arc<ThreadPool>>,
    /// Number of prompt tokens computed at a time.
    pub chunk: usize,
    /// Granularity of the placement.
    pub granularity: Granularity,
    /// [`GpuUse::IfQuicker`] refuses a GPU that would make the model slower; other values use it
    /// for as much as fits.
    pub gpu_use: GpuUse,
    /// Folder with the saved speeds of machines and the devices that have passed their self-test.
    /// Plans use these speeds unless the planner was given others. Without a folder no device is
    /// tested.
    pub speeds: Option<PathBuf>,
}

impl DeviceLoadOptions {
    /// Opens the CPU.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub(super) fn open_cpu(&self) -> Result<Cpu> {
        match &self.workers {
            Some(workers) => Cpu::with_workers(&self.cpu, Arc::clone(workers)),
            None => Cpu::new(&self.cpu),
        }
    }
}

/// Opens the GPU and loads the part of `model` that makes the best use of its budget. The first use
/// of a driver starts with a self-test. `progress` receives the stages and may cancel.
///
/// # Errors
/// [`Error::Unsupported`] if a layer of the model has no kernels on a device
/// ([`device::device_support`]), [`Error::Memory`] if nothing useful fits, [`Error::NoGpu`] if
/// there is no such GPU, [`Error::SlowGpu`] if `gpu_use` requires a speedup and none is expected,
/// [`Error::Gpu`] if the device is lost, [`Error::Cancelled`].
pub fn load_on_device(
    model: &Model,
    options: &DeviceLoadOptions,
    planner: &Arc<LivePlanner>,
    progress: LoadProgress<'_>,
) -> Result<(HybridProcessor, Gpu)> {
    let look_up = |gpu: Option<&Gpu>| {
        planner.look_up_machine(options.speeds.as_deref(), || options.open_cpu(), gpu.map(Gpu::report));
    };
    device::device_support(model).inspect_err(|_| look_up(None))?;
    let mut wanted = options.gpu.of_floats(options.cpu.activations == InputPrecision::Float);
    loop {
        let known = wanted.fallbacks.all().len();
        let opened = Gpu::open(&wanted).inspect_err(|_| look_up(None));
        let loaded = opened.and_then(|gpu| {
            look_up(Some(&gpu));
            Ok((load_on(&gpu, &wanted, model, options, planner, progress)?, gpu))
        });
        // A driver that refuses a kernel may accept it once a feature is disabled. Each retry
        // disables another feature.
        let refused = matches!(loaded, Err(Error::Gpu { failure: GpuFailure::Refused { .. }, .. }));
        if !refused || wanted.fallbacks.all().len() == known {
            return loaded;
        }
        wanted.faults = Faults::default();
    }
}

/// Loads the part of `model` that makes the best use of the budget of `gpu`. It first compares the
/// needed kernels with the CPU's, unless an earlier test has done so.
fn load_on(
    gpu: &Gpu,
    wanted: &GpuOptions,
    model: &Model,
    options: &DeviceLoadOptions,
    planner: &Arc<LivePlanner>,
    progress: LoadProgress<'_>,
) -> Result<HybridProcessor> {
    planner.set_chunk(options.chunk);
    let mut target = gpu.arena().budget();
    planner.adaptation.set_unified(gpu.report().kind.has_unified_memory());
    let chunk = planner.set_device(model, *gpu.caps(), target.saturating_sub(planner.reserved()))?;
    // A software driver is trusted, because it runs on the CPU itself and compiles slowly.
    if let Some(folder) = options.speeds.as_ref().filter(|_| gpu.report().kind != AdapterKind::Software) {
        let types = planner.planner(model)?.profile().weight_types();
        ensure_tested(gpu, &types, folder, &wanted.fallbacks, &mut || progress(LoadStage::Testing))?;
    }
    let mut progress = |done, total| progress(LoadStage::Uploading { done, total });
    let threshold_ratio = planner.planner(model)?.threshold_ratio();
    let load = device::GpuLoad { chunk, predictors: false, threshold_ratio, ..device::GpuLoad::default() };
    let mut placement_source =
        PlacementSource { planner: Arc::clone(planner), granularity: options.granularity, gpu_use: options.gpu_use };
    for attempt in 1.. {
        let placement = hybrid::Planner::plan(&mut placement_source, model, target)?;
        match HybridProcessor::load(gpu, options.open_cpu()?, model, &placement, &load, &mut progress) {
            Ok(processor) => return Ok(processor.with_planner(Box::new(placement_source))),
            Err(Error::Memory { .. }) if attempt < ATTEMPTS && target < u64::MAX => target -= target / 8,
            Err(error) => return Err(error),
        }
    }
    Err(Error::Cancelled)
}

/// Supplies a [`HybridProcessor`] with placements: plans for the current inputs, and swaps of
/// neurons under one budget.
#[derive(Debug)]
struct PlacementSource {
    planner: Arc<LivePlanner>,
    granularity: Granularity,
    gpu_use: GpuUse,
}

impl hybrid::Planner for PlacementSource {
    fn plan(&mut self, model: &Model, budget: u64) -> Result<Placement> {
        let budget = budget.saturating_sub(self.planner.reserved());
        let planner = self.planner.planner(model)?;
        let plan = match self.granularity {
            Granularity::Neurons => self.planner.plan(&planner, budget, self.gpu_use),
            other => planner.by(other, budget),
        };
        Ok(plan?.placement)
    }

    fn revise(&mut self, _: &Model, now: &Placement) -> Result<Option<Placement>> {
        Ok(match self.granularity {
            Granularity::Neurons => self.planner.adaptation.revise(now),
            Granularity::Layers | Granularity::Frequency => None,
        })
    }

    fn uploaded(&mut self, bytes: u64, time: Duration) {
        self.planner.adaptation.record_move(bytes, time);
    }

    fn streaming(&mut self, model: &Model, budget: u64) -> Result<Option<(Streaming, u64)>> {
        let planner = self.planner.planner(model)?;
        let buffer = planner.streaming_buffer(budget.saturating_sub(self.planner.reserved()));
        Ok(Some((planner.inputs().streaming(), buffer)))
    }
}

/// A callback that receives the current stage of a load and decides whether to continue.
pub type LoadProgress<'a> = &'a mut dyn FnMut(LoadStage) -> ControlFlow<()>;

/// The models of an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadedModels<'m> {
    pub model: &'m Model,
    /// The model that drafts tokens, if there is one.
    pub drafter: Option<&'m Model>,
}

/// A source of processors other than the CPU, each with the model loaded.
pub(super) trait DeviceSource: Debug + Send + Sync {
    /// Opens the device and loads as much of the models as belongs there under `budget` bytes
    /// (`None` allows all free memory).
    ///
    /// # Errors
    /// As [`load_on_device`].
    fn load(
        &self,
        models: LoadedModels<'_>,
        planner: &Arc<LivePlanner>,
        budget: Option<u64>,
        progress: LoadProgress<'_>,
    ) -> Result<LoadedDevice>;

    /// Disabled features of its adapters.
    fn fallbacks(&self) -> Vec<Fallback>;

    /// Disables one more feature of the named adapter, which was lost too often; `None` if there is
    /// none to disable.
    fn after_losses(&self, adapter: &str, why: &str) -> Option<Fallback>;
}

/// A device with a model loaded.
#[derive(Debug)]
pub(super) struct LoadedDevice {
    pub processor: Box<dyn Processor>,
    /// The drafter, if it is on the device as well.
    pub drafter: Option<DeviceDrafter>,
    pub memory: Box<dyn MemoryLedger>,
}

/// Accounts for a device's memory.
pub(super) trait MemoryLedger: Debug + Send {
    /// Current memory usage, by purpose.
    fn read(&self) -> DeviceMemory;

    /// The device, if it can compute more than the models that are loaded.
    fn gpu(&self) -> Option<&Gpu>;
}

/// A GPU as a device source.
#[derive(Debug)]
struct GpuSource(DeviceLoadOptions);

impl DeviceSource for GpuSource {
    fn load(
        &self,
        LoadedModels { model, drafter }: LoadedModels<'_>,
        planner: &Arc<LivePlanner>,
        budget: Option<u64>,
        progress: LoadProgress<'_>,
    ) -> Result<LoadedDevice> {
        let mut options = self.0.clone();
        options.gpu.budget = budget;
        let (processor, gpu) = load_on_device(model, &options, planner, progress)?;
        let drafter = drafter.map(|drafter| load_drafter(&gpu, &processor, model, drafter, &options, planner));
        let drafter = drafter.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "the drafter stays on the CPU");
            None
        });
        Ok(LoadedDevice { processor: Box::new(processor), drafter: drafter.flatten(), memory: Box::new(gpu) })
    }

    fn fallbacks(&self) -> Vec<Fallback> {
        self.0.gpu.fallbacks.all()
    }

    fn after_losses(&self, adapter: &str, why: &str) -> Option<Fallback> {
        self.0.gpu.fallbacks.after_losses(adapter, why)
    }
}

impl MemoryLedger for Gpu {
    fn gpu(&self) -> Option<&Gpu> {
        Some(self)
    }

    fn read(&self) -> DeviceMemory {
        let arena = self.arena();
        DeviceMemory {
            adapter: self.report().name.clone(),
            budget: Some(arena.budget()).filter(|budget| *budget < u64::MAX),
            card: self.report().memory(),
            shares_ram: self.report().kind.has_unified_memory() || self.report().kind == AdapterKind::Software,
            accounted: arena.used(),
            by_purpose: Purpose::ALL.map(|purpose| (purpose, arena.used_for(purpose))),
            moving: false,
            fallbacks: self.fallbacks(),
        }
    }
}

/// The source of the device that `choice` names; `None` for the CPU.
pub(super) fn device_source(choice: &DeviceChoice, options: &DeviceLoadOptions) -> Option<Arc<dyn DeviceSource>> {
    match choice {
        DeviceChoice::Cpu => None,
        DeviceChoice::Auto(gpu) | DeviceChoice::Gpu(gpu) => {
            let (gpu, gpu_use) = (gpu.clone(), choice.gpu_use());
            Some(Arc::new(GpuSource(DeviceLoadOptions { gpu, gpu_use, ..options.clone() })))
        }
    }
}

/// A thread that loads a device. Its result arrives as [`EngineCommand::Loaded`]. Dropping it
/// cancels the load and waits for the thread, which checks for a cancellation after every piece of
/// the model.
#[derive(Debug)]
pub(super) struct LoadThread {
    /// Number of the load in this engine.
    pub number: u64,
    /// The budget of the load.
    pub budget: Option<u64>,
    cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LoadThread {
    /// Starts load `number` from `source`, under the requested budget.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the system cannot start the thread.
    pub fn start(
        number: u64,
        source: Arc<dyn DeviceSource>,
        state: Arc<EngineState>,
        done: Sender<EngineCommand>,
    ) -> Result<Self> {
        let budget = state.settings.latest().budget;
        let cancelled = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&cancelled);
        let work = move || {
            let mut progress = |stage| {
                state.device.status.set_progress(stage);
                if stop.load(SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            // After a panic the half-loaded device is dropped, and the engine must still receive
            // the end of the load.
            let loaded =
                catch_unwind(AssertUnwindSafe(|| source.load(state.models(), &state.planner, budget, &mut progress)));
            let bug = |panic: &(dyn Any + Send)| {
                format!("an internal error occurred while the model was loaded ({})", panic_message(panic))
            };
            let result = loaded.unwrap_or_else(|panic| Err(Error::Stopped(bug(panic.as_ref()))));
            // An engine that is gone does not need the result.
            let _ = done.send(EngineCommand::Loaded { number, result });
        };
        let thread = thread::Builder::new().name("thermocline-load".to_owned()).spawn(work);
        let thread = thread
            .map_err(|error| Error::Stopped(format!("the thread that loads the model did not start: {error}")))?;
        Ok(LoadThread { number, budget, cancelled, thread: Some(thread) })
    }
}

impl Drop for LoadThread {
    fn drop(&mut self) {
        self.cancelled.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // The thread's panics were caught.
            let _ = thread.join();
        }
    }
}
