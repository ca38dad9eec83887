//! Finding out how fast this machine is, while nobody wants anything of it: once per adapter, driver and CPU, and once more for
//! types of weights that no earlier model had.

use std::{
    ops::ControlFlow,
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use super::{
    DeviceChoice, DeviceStatus, Engine,
    engine::{Shared, WeakEngine},
    worker::Command,
};
use crate::{
    error::{Error, Result},
    gpu::{Gpu, GpuOptions},
    sparsity::{
        measure::{MachineOptions, MeasureEffort, cached_machine},
        placement::Machine,
    },
};

/// When to measure, and how much.
#[derive(Debug, Clone, Copy)]
pub struct SurveyOptions {
    /// Nothing has been computed or moved for so long before it begins.
    pub idle: Duration,
    /// How often the engine is looked at.
    pub poll: Duration,
    /// It ends after so long at most.
    pub longest: Duration,
    /// What is measured at first; after an attempt that took too long, less.
    pub effort: MeasureEffort,
}

impl Default for SurveyOptions {
    fn default() -> Self {
        SurveyOptions {
            idle: Duration::from_secs(4),
            poll: Duration::from_millis(250),
            longest: Duration::from_secs(8),
            effort: MeasureEffort::default(),
        }
    }
}

/// Attempts that may fail for one device before it is let alone.
const ATTEMPTS: usize = 3;

/// Device memory that products of the largest matrices take.
const MATRICES: u64 = 128 << 20;

/// Decides when to begin.
#[derive(Debug, Default)]
struct Patience {
    idle_since: Option<Instant>,
    failed: usize,
}

impl Patience {
    /// Whether it is time, at `now`, when something is going on or not (`busy`).
    fn due(&mut self, now: Instant, busy: bool, idle: Duration) -> bool {
        if busy {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        // After a failure there is no hurry.
        let wait = idle * (1 << (2 * self.failed.min(ATTEMPTS)));
        self.failed < ATTEMPTS && now.saturating_duration_since(since) >= wait
    }

    /// An attempt has ended without a result.
    fn again(&mut self, interrupted: bool) {
        self.idle_since = None;
        self.failed += usize::from(!interrupted);
    }
}

/// What is measured.
#[derive(Debug, Clone)]
enum Target {
    Cpu,
    Gpu(GpuOptions),
}

impl Engine {
    /// Has the speeds of this machine measured in the background, as soon as nothing has happened for a while, unless they are
    /// known; they are kept in [`EngineOptions::speeds`](super::EngineOptions::speeds), and planned with from then on. When an
    /// answer begins meanwhile, that goes first, and so does whatever else makes the caller `busy`. Another device is measured when
    /// it is chosen. Ends with the engine.
    ///
    /// # Errors
    /// [`Error::Stopped`] if there is no thread for it.
    pub fn measure_when_idle(&self, options: SurveyOptions, busy: impl Fn() -> bool + Send + 'static) -> Result<()> {
        let engine = self.downgrade();
        let thread = thread::Builder::new().name("thermocline-survey".to_owned());
        let spawned = thread.spawn(move || survey(&engine, &options, &busy));
        spawned.map(drop).map_err(|error| Error::Stopped(format!("no thread to measure the machine: {error}")))
    }

    /// Plans with these speeds from now on, between two tokens.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_machine(&self, machine: Machine) -> Result<()> {
        self.command(Command::Machine { machine: Some(Box::new(machine)) })
    }

    /// Whether plans go by speeds that were measured, for the device chosen and all types of the model's weights. Never waits
    /// for long.
    pub fn knows_speeds(&self) -> bool {
        let shared = self.shared();
        shared.terms.prospect(&shared.model).is_ok_and(|prospect| {
            let machine = &prospect.basis().machine;
            let gpu = machine.gpu.as_ref().map(|gpu| gpu.adapter.as_str());
            let fits = match (self.device(), target(shared)) {
                (DeviceStatus::Gpu(memory), _) => gpu == Some(memory.adapter.as_str()),
                (_, Some(Target::Gpu(_))) => gpu.is_some(),
                (_, Some(Target::Cpu) | None) => true,
            };
            !machine.assumed && fits && machine.knows(&prospect.demand().types())
        })
    }
}

/// What is to be measured for the device chosen; `None` while that is on its way.
fn target(shared: &Shared) -> Option<Target> {
    let choice = shared.choice.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (DeviceChoice::Auto(gpu) | DeviceChoice::Gpu(gpu)) = choice else { return Some(Target::Cpu) };
    match shared.device.read() {
        DeviceStatus::Loading { .. } | DeviceStatus::Lost { .. } => None,
        DeviceStatus::Gpu(_) => Some(Target::Gpu(gpu)),
        DeviceStatus::Cpu { reason } => Some(match reason.as_deref() {
            // With the speeds it really has it may turn out to be of use.
            Some(Error::SlowGpu | Error::Memory { .. }) => Target::Gpu(gpu),
            _ => Target::Cpu,
        }),
    }
}

/// Whether somebody wants something, or memory moves.
fn is_busy(engine: &Engine) -> bool {
    let moving = matches!(engine.device(), DeviceStatus::Gpu(memory) if memory.moving);
    moving || engine.telemetry().generations > 0
}

fn survey(engine: &WeakEngine, options: &SurveyOptions, others: &dyn Fn() -> bool) {
    let (mut patience, mut effort) = (Patience::default(), options.effort);
    let mut chosen = None;
    loop {
        thread::sleep(options.poll);
        let Some(here) = engine.upgrade().filter(|it| it.stopped().is_none()) else { return };
        let Some(target) = target(here.shared()) else { continue };
        let name = Some(format!("{target:?}"));
        if name != chosen {
            (patience, effort, chosen) = (Patience::default(), options.effort, name);
        }
        let busy = others() || is_busy(&here) || here.knows_speeds();
        if !patience.due(Instant::now(), busy, options.idle) {
            continue;
        }
        let began = Instant::now();
        let interrupted = || others() || engine.upgrade().is_none_or(|it| it.telemetry().generations > 0);
        let mut go_on = || match interrupted() || began.elapsed() > options.longest {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let measured = measure(here, &target, &effort, &mut go_on);
        let Some(here) = engine.upgrade() else { return };
        let machine = match measured {
            // Another device may be chosen by now, of which this says nothing.
            Ok(machine) => {
                let now = self::target(here.shared()).map(|target| format!("{target:?}"));
                (now == chosen).then(|| Box::new(machine))
            }
            Err(error) => {
                tracing::info!(%error, "the machine is not measured yet");
                patience.again(interrupted());
                if !interrupted() {
                    effort = less(&effort);
                }
                None
            }
        };
        // An engine that has stopped plans nothing.
        let _ = here.command(Command::Machine { machine });
    }
}

/// A quarter of it.
fn less(effort: &MeasureEffort) -> MeasureEffort {
    let mut less = *effort;
    less.cpu_bytes = (less.cpu_bytes / 4).max(1 << 20);
    less.gpu.bytes = (less.gpu.bytes / 4).max(1 << 20);
    less.rounds = 1;
    less
}

/// Measures; of the engine only what it holds on the device is asked to make room.
fn measure(
    engine: Engine,
    target: &Target,
    effort: &MeasureEffort,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Machine> {
    let shared = engine.shared();
    let types = shared.terms.prospect(&shared.model)?.demand().types();
    let how = MachineOptions { folder: shared.place.speeds.clone(), again: false, effort: *effort };
    let cpu = shared.place.open_cpu()?;
    let gpu = match target {
        Target::Cpu => None,
        Target::Gpu(options) => {
            let budget = Some(make_room(&engine, MATRICES + 3 * effort.gpu.bytes, go_on)?);
            Some(Gpu::open(&GpuOptions { budget, ..options.clone() })?)
        }
    };
    // Whoever closes the model does not wait for this.
    drop(engine);
    cached_machine(&cpu, gpu.as_ref(), &types, &how, go_on)
}

/// Bytes of device memory to measure in, no more than `wanted`: what the engine has left of its budget, or gives up for the time
/// being.
fn make_room(engine: &Engine, wanted: u64, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Result<u64> {
    let left = |engine: &Engine| match engine.device() {
        DeviceStatus::Gpu(memory) => {
            memory.budget.map(|budget| (budget, budget.saturating_sub(memory.accounted), memory.moving))
        }
        _ => engine.vram_budget().map(|budget| (budget, budget, false)),
    };
    let Some((budget, free, _)) = left(engine) else { return Ok(wanted) };
    let room = wanted.min(budget / 2);
    if room < MATRICES {
        return Err(Error::Memory { what: "measuring the GPU's speed", wanted: MATRICES, available: budget / 2 });
    }
    if free < room {
        engine.command(Command::Spare { bytes: room - free })?;
    }
    while let Some((_, free, moving)) = left(engine)
        && (free < room || moving)
    {
        if go_on().is_break() {
            return Err(Error::Cancelled);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(room)
}

#[cfg(test)]
mod tests;
