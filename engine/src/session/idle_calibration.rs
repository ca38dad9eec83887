//! Calibrates the machine while the engine is idle: once per adapter, driver and CPU, and again for
//! weight types that no earlier model had.

use std::{
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use super::{DeviceChoice, DeviceStatus, Engine, engine::WeakEngine, engine_state::EngineState, worker::EngineCommand};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_cpu as cpu;
use thermocline_gpu::{Gpu, GpuOptions};
use thermocline_lab::calibration::{MachineOptions, MeasureEffort, cached_machine};
use thermocline_run::placement::Machine;

/// Timing and effort of calibration.
#[derive(Debug, Clone, Copy)]
pub struct CalibrationOptions {
    /// Idle time before an attempt, in which the engine neither computes nor moves weights.
    pub idle: Duration,
    /// Time between two checks whether the engine is idle.
    pub poll: Duration,
    /// Longest duration of one attempt.
    pub longest: Duration,
    /// Effort of the first attempt. An attempt that takes too long reduces it for the next one.
    pub effort: MeasureEffort,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        CalibrationOptions {
            idle: Duration::from_secs(4),
            poll: Duration::from_millis(250),
            longest: Duration::from_secs(8),
            effort: MeasureEffort::default(),
        }
    }
}

/// Number of failed attempts after which a device is no longer calibrated.
const ATTEMPTS: usize = 3;

/// Bytes of device memory that products of the largest matrices need.
const MATRIX_BYTES: u64 = 128 << 20;

/// Decides when an attempt starts.
#[derive(Debug, Default)]
struct IdleTimer {
    idle_since: Option<Instant>,
    failed: usize,
}

impl IdleTimer {
    /// True if an attempt is due at `now`, after being idle (not `busy`) for `idle`.
    fn due(&mut self, now: Instant, busy: bool, idle: Duration) -> bool {
        if busy {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        // Each failure lengthens the wait.
        let wait = idle * (1 << (2 * self.failed.min(ATTEMPTS)));
        self.failed < ATTEMPTS && now.saturating_duration_since(since) >= wait
    }

    /// Records an attempt that ended without a result.
    fn attempt_failed(&mut self, interrupted: bool) {
        self.idle_since = None;
        self.failed += usize::from(!interrupted);
    }
}

/// The processors to calibrate.
#[derive(Debug, Clone)]
enum CalibrationTarget {
    Cpu,
    Gpu(GpuOptions),
}

impl Engine {
    /// Measures this machine's speeds in the background once the engine is idle, unless they are
    /// known. They are saved in [`EngineOptions::speeds`](super::EngineOptions::speeds), and plans
    /// use them from then on. A new answer interrupts the measurement. It also ends when `busy`
    /// returns true. Another device is measured when it is chosen. The measurement ends with the
    /// engine.
    ///
    /// # Errors
    /// [`Error::Stopped`] if its thread cannot be started.
    pub fn measure_when_idle(
        &self,
        options: CalibrationOptions,
        busy: impl Fn() -> bool + Send + 'static,
    ) -> Result<()> {
        let engine = self.downgrade();
        let thread = thread::Builder::new().name("thermocline-calibration".to_owned());
        let spawned = thread.spawn(move || calibrate(&engine, &options, &busy));
        spawned
            .map(drop)
            .map_err(|error| Error::Stopped(format!("the thread that measures the machine did not start: {error}")))
    }

    /// Uses these speeds for plans from now on. The change takes effect between two tokens.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the engine has stopped.
    pub fn set_machine(&self, machine: Machine) -> Result<()> {
        self.command(EngineCommand::SetMachine { machine: Some(Box::new(machine)) })
    }

    /// True if plans use measured speeds of the chosen device and of all the model's weight types.
    /// Waits for a solve at most.
    pub fn knows_speeds(&self) -> bool {
        let state = self.state();
        state.planner.planner(&state.model).is_ok_and(|planner| {
            let machine = &planner.inputs().machine;
            let gpu = machine.gpu.as_ref().map(|gpu| gpu.adapter.as_str());
            let fits = match (self.device(), target(state)) {
                (DeviceStatus::Gpu(memory), _) => gpu == Some(memory.adapter.as_str()),
                (_, Some(CalibrationTarget::Gpu(_))) => gpu.is_some(),
                (_, Some(CalibrationTarget::Cpu) | None) => true,
            };
            !machine.assumed && fits && machine.knows(&planner.profile().weight_types())
        })
    }
}

/// The target for the chosen device; `None` while the device is loading or lost.
fn target(state: &EngineState) -> Option<CalibrationTarget> {
    let choice = state.device.choice.lock().clone();
    let (DeviceChoice::Auto(gpu) | DeviceChoice::Gpu(gpu)) = choice else { return Some(CalibrationTarget::Cpu) };
    match state.device.status.read() {
        DeviceStatus::Loading(_) | DeviceStatus::Lost { .. } => None,
        DeviceStatus::Gpu(_) => Some(CalibrationTarget::Gpu(gpu)),
        DeviceStatus::Cpu { reason } => Some(match reason.as_deref() {
            // Measured speeds may show that the GPU is useful after all.
            Some(Error::SlowGpu | Error::Memory { .. }) => CalibrationTarget::Gpu(gpu),
            _ => CalibrationTarget::Cpu,
        }),
    }
}

/// True while an answer is generated or weights move.
fn is_busy(engine: &Engine) -> bool {
    let moving = matches!(engine.device(), DeviceStatus::Gpu(memory) if memory.moving);
    moving || engine.telemetry().generations > 0
}

fn calibrate(engine: &WeakEngine, options: &CalibrationOptions, others: &dyn Fn() -> bool) {
    let (mut timer, mut effort) = (IdleTimer::default(), options.effort);
    let mut chosen = None;
    loop {
        thread::sleep(options.poll);
        let Some(here) = engine.upgrade().filter(|it| it.stopped().is_none()) else { return };
        let Some(target) = target(here.state()) else { continue };
        let name = Some(format!("{target:?}"));
        if name != chosen {
            (timer, effort, chosen) = (IdleTimer::default(), options.effort, name);
        }
        let busy = others() || is_busy(&here) || here.knows_speeds();
        if !timer.due(Instant::now(), busy, options.idle) {
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
            // If another device was chosen meanwhile, these speeds are not its own.
            Ok(machine) => {
                let now = self::target(here.state()).map(|target| format!("{target:?}"));
                (now == chosen).then(|| Box::new(machine))
            }
            Err(error) => {
                tracing::info!(%error, "the calibration of the machine failed");
                timer.attempt_failed(interrupted());
                if !interrupted() {
                    effort.cpu_bytes = (effort.cpu_bytes / 4).max(1 << 20);
                    effort.gpu.bytes = (effort.gpu.bytes / 4).max(1 << 20);
                    effort.rounds = 1;
                }
                None
            }
        };
        // A stopped engine makes no plans.
        let _ = here.command(EngineCommand::SetMachine { machine });
    }
}

/// Measures the speeds of `target` in device memory that the engine frees for it.
fn measure(
    engine: Engine,
    target: &CalibrationTarget,
    effort: &MeasureEffort,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Machine> {
    let state = engine.state();
    let types = state.planner.planner(&state.model)?.profile().weight_types();
    let pager = state.model.pager();
    let disk = pager.map(|_| state.model.checkpoint.weights_file());
    let how = MachineOptions { folder: state.device.load.speeds.clone(), again: false, disk, effort: *effort };
    let cpu = state.device.load.open_cpu()?;
    let gpu = match target {
        CalibrationTarget::Cpu => None,
        CalibrationTarget::Gpu(options) => {
            let budget = Some(reserve_memory(&engine, MATRIX_BYTES + 3 * effort.gpu.bytes, go_on)?);
            let floats = state.device.load.cpu.activations == cpu::InputPrecision::Float;
            Some(Gpu::open(&GpuOptions { budget, ..options.of_floats(floats) })?)
        }
    };
    // Drops the handle so that closing the model does not wait for the measurement.
    drop(engine);
    cached_machine(&cpu, gpu.as_ref(), &types, &how, go_on)
}

/// Reserves at most `wanted` bytes of device memory for measuring: the rest of the engine's budget
/// and what the engine releases. Returns the bytes.
fn reserve_memory(engine: &Engine, wanted: u64, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Result<u64> {
    let left = |engine: &Engine| match engine.device() {
        DeviceStatus::Gpu(memory) => {
            memory.budget.map(|budget| (budget, budget.saturating_sub(memory.accounted), memory.moving))
        }
        _ => engine.vram_budget().map(|budget| (budget, budget, false)),
    };
    let Some((budget, free, _)) = left(engine) else { return Ok(wanted) };
    let room = wanted.min(budget / 2);
    if room < MATRIX_BYTES {
        return Err(Error::memory(ScarceMemory::Gpu, "measurement of the GPU's speed", MATRIX_BYTES, budget / 2));
    }
    if free < room {
        engine.command(EngineCommand::Reserve { bytes: room - free })?;
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
