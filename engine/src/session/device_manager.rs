//! Gives an engine's forward pass its processor: the CPU, or a device that is loaded in the
//! background and may be lost.

mod budget;

use std::{
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

use super::{
    device::{DeviceEvent, DeviceMemory, DeviceStatus, LoadStage},
    engine_state::EngineState,
    loader::{DeviceSource, LoadThread, LoadedDevice, MemoryLedger},
    worker::EngineCommand,
};
use thermocline_base::error::{Error, GpuFailure, Result};
use thermocline_gpu::{Fallback, Gpu};
use thermocline_run::runtime::{Forward, Processor};

/// Delays before a lost device is tried again. After the last attempt one of its features is
/// disabled, and the delays start over.
const RETRY_DELAYS: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// Time of stable work after which a device has all its attempts again.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Manages the processor of the forward pass and the device that is in use, loading or lost.
#[derive(Debug)]
pub(super) struct DeviceManager {
    engine: Arc<EngineState>,
    /// Sender of the engine thread's commands, to which load threads report.
    commands: Sender<EngineCommand>,
    /// Source of the chosen device; `None` if the CPU was chosen.
    source: Option<Arc<dyn DeviceSource>>,
    state: DeviceState,
    /// The CPU processor, kept while the forward pass uses a device's processor.
    cpu: Option<Box<dyn Processor>>,
    /// Number of loads so far.
    loads: u64,
    /// Attempts since the device last worked for [`STABLE_AFTER`].
    attempts: usize,
    /// Fallbacks that were reported, or were in force before.
    told: Vec<Fallback>,
    /// A budget that was too small to use the device.
    too_small: Option<u64>,
    /// True while weights are being moved to or from the device.
    pub moving: bool,
    /// Moves that were completed since the last load or change of the budget.
    settled_moves: u32,
    /// Load number and [`Residency::moves`](thermocline_run::runtime::Residency::moves) of the last
    /// published state; `None` if nothing was on a device.
    published: Option<(u64, u64)>,
}

/// The state of the device.
#[derive(Debug)]
enum DeviceState {
    /// Not in use; the CPU computes.
    Cpu,
    /// Being loaded while the CPU computes. If `first` is true, nothing was computed yet and
    /// requests wait for the device.
    Loading { thread: LoadThread, first: bool },
    /// In use.
    InUse { memory: Box<dyn MemoryLedger>, since: Instant },
    /// Lost; the CPU computes until the device is tried again.
    Lost { until: Instant },
}

impl DeviceManager {
    /// A manager that starts on the CPU. With a `source` it starts to load the device at once.
    pub fn new(
        engine: Arc<EngineState>,
        commands: Sender<EngineCommand>,
        source: Option<Arc<dyn DeviceSource>>,
    ) -> Self {
        let mut new = DeviceManager {
            engine,
            commands,
            state: DeviceState::Cpu,
            cpu: None,
            loads: 0,
            attempts: 0,
            told: source.as_ref().map_or_else(Vec::new, |source| source.fallbacks()),
            source,
            too_small: None,
            moving: false,
            settled_moves: 0,
            published: None,
        };
        if new.source.is_some() {
            new.start_load(true);
        }
        new
    }

    /// True while requests wait for the first load.
    pub fn is_awaited(&self) -> bool {
        matches!(self.state, DeviceState::Loading { first: true, .. })
    }

    /// True if a device computes.
    pub fn on_device(&self) -> bool {
        matches!(self.state, DeviceState::InUse { .. })
    }

    /// The device in use, for computations beside the model.
    pub fn gpu(&self) -> Option<&Gpu> {
        match &self.state {
            DeviceState::InUse { memory, .. } => memory.gpu(),
            _ => None,
        }
    }

    /// Time at which [`DeviceManager::retry_if_due`] must be called.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            DeviceState::Lost { until } => Some(until),
            _ => None,
        }
    }

    /// Tries a lost device again if its delay is over.
    pub fn retry_if_due(&mut self) {
        if self.deadline().is_some_and(|until| Instant::now() >= until) {
            self.start_load(false);
        }
    }

    /// Publishes the device's memory usage.
    pub fn publish_memory(&self) {
        let telemetry = &self.engine.figures.telemetry;
        let memory = match &self.state {
            DeviceState::InUse { memory, .. } => Some(DeviceMemory { moving: self.moving, ..memory.read() }),
            _ => None,
        };
        telemetry.device_bytes.set(memory.as_ref().map_or(0, |memory| memory.accounted));
        telemetry.device_budget.set(memory.as_ref().and_then(|memory| memory.budget).unwrap_or(0));
        if let Some(memory) = memory {
            self.engine.device.status.write(DeviceStatus::Gpu(memory));
        }
    }

    /// Publishes the parts of the model that are on the device, if they have changed.
    pub fn publish_resident(&mut self, forward: &mut Forward) {
        let residency = forward.residency().filter(|_| self.on_device());
        let now = residency.as_ref().map(|(_, residency)| (self.loads, residency.moves()));
        if now != self.published {
            self.published = now;
            let resident = residency.and_then(|(model, residency)| residency.resident(model)).map(Arc::new);
            *self.engine.device.resident.lock() = resident;
        }
    }

    /// Switches to the device of `source`, or to the CPU. Drops the previous device first.
    pub fn switch_source(&mut self, forward: &mut Forward, source: Option<Arc<dyn DeviceSource>>) {
        self.move_to_cpu(forward);
        self.told = source.as_ref().map_or_else(Vec::new, |source| source.fallbacks());
        self.source = source;
        self.retry();
    }

    /// Notes that weights were read to be copied to the device.
    fn note_reads(&self) {
        if let Some(pager) = self.engine.model.pager() {
            pager.note_other_reads();
        }
    }

    /// Bytes held on the device.
    pub fn held_bytes(&self) -> u64 {
        match &self.state {
            DeviceState::InUse { memory, .. } => memory.read().accounted,
            _ => 0,
        }
    }

    /// Tries the device again now, with all attempts, unless it is in use or being loaded.
    pub fn retry(&mut self) {
        match self.state {
            DeviceState::InUse { .. } | DeviceState::Loading { .. } => {}
            DeviceState::Cpu | DeviceState::Lost { .. } if self.source.is_some() => {
                self.attempts = 0;
                self.too_small = None;
                self.engine.device.status.write(DeviceStatus::Loading(LoadStage::Opening));
                self.start_load(false);
            }
            DeviceState::Cpu | DeviceState::Lost { .. } => {
                self.engine.device.status.write(DeviceStatus::Cpu { reason: None })
            }
        }
    }

    /// Handles the end of load `number`, and moves the forward pass to the device on success.
    /// Returns no events for a load that was given up.
    pub fn finish_load(
        &mut self,
        forward: &mut Forward,
        number: u64,
        result: Result<LoadedDevice>,
    ) -> Vec<DeviceEvent> {
        let budget = match &self.state {
            DeviceState::Loading { thread, .. } if thread.number == number => thread.budget,
            _ => return Vec::new(),
        };
        match result {
            Ok(LoadedDevice { processor, memory, .. }) => {
                (self.moving, self.settled_moves) = (true, 0);
                self.cpu = Some(forward.replace(&self.engine.model, processor));
                self.state = DeviceState::InUse { memory, since: Instant::now() };
                // The placement is published before the status, because readers of the status may
                // ask for it.
                self.publish_resident(forward);
                self.publish_memory();
                self.note_reads();
                let mut events = self.tell_fallbacks();
                if let DeviceState::InUse { memory, .. } = &self.state {
                    let adapter = memory.read().adapter;
                    tracing::info!(adapter, "the model is loaded on the GPU");
                    events.push(DeviceEvent::Gpu { adapter });
                }
                events
            }
            Err(error) => {
                if matches!(error, Error::Memory { .. }) {
                    self.too_small = budget;
                }
                self.after_failure(error)
            }
        }
    }

    /// Moves the forward pass to the CPU after the device has failed with `error`.
    pub fn device_failed(&mut self, forward: &mut Forward, error: Error) -> Vec<DeviceEvent> {
        if let DeviceState::InUse { since, .. } = &self.state
            && since.elapsed() > STABLE_AFTER
        {
            self.attempts = 0;
        }
        self.move_to_cpu(forward);
        self.after_failure(error)
    }

    /// Moves the forward pass to the CPU and drops the device.
    fn move_to_cpu(&mut self, forward: &mut Forward) {
        self.state = DeviceState::Cpu;
        self.moving = false;
        if let Some(cpu) = self.cpu.take() {
            forward.replace(&self.engine.model, cpu);
        }
    }

    /// Decides what follows a failure. If a feature was disabled for it, the device is loaded again
    /// at once without that feature. A lost device is tried again later, even if its adapter is
    /// missing meanwhile. After too many losses, one more feature is disabled. Any other error
    /// would repeat, so the device is given up.
    fn after_failure(&mut self, error: Error) -> Vec<DeviceEvent> {
        let was_lost = matches!(self.engine.device.status.read(), DeviceStatus::Lost { .. });
        let (may_return, refused) = match &error {
            Error::Gpu { failure, .. } => {
                (matches!(failure, GpuFailure::Hang | GpuFailure::Lost), matches!(failure, GpuFailure::Refused { .. }))
            }
            _ => (was_lost, false),
        };
        let delay = RETRY_DELAYS.get(self.attempts).filter(|_| may_return);
        if let (Error::Gpu { adapter, reason, .. }, Some(source)) = (&error, &self.source)
            && may_return
            && delay.is_none()
        {
            source.after_losses(adapter, &format!("it was lost {} times in a row: {reason}", self.attempts + 1));
        }
        let mut events = self.tell_fallbacks();
        if !events.is_empty() && (refused || (may_return && delay.is_none())) {
            let first = self.is_awaited();
            self.attempts = 0;
            self.engine.device.status.write(DeviceStatus::Loading(LoadStage::Opening));
            self.start_load(first);
            return events;
        }
        let Some(delay) = delay else {
            tracing::info!(%error, "the model runs on the CPU");
            let reason = Arc::new(error);
            self.state = DeviceState::Cpu;
            self.engine.device.status.write(DeviceStatus::Cpu { reason: Some(Arc::clone(&reason)) });
            events.push(DeviceEvent::Cpu { reason });
            return events;
        };
        self.attempts += 1;
        self.state = DeviceState::Lost { until: Instant::now() + *delay };
        // Only the first loss is an event.
        if let Error::Gpu { adapter, reason, .. } = error
            && !was_lost
        {
            self.engine.device.status.write(DeviceStatus::Lost { adapter: adapter.clone(), reason: reason.clone() });
            events.push(DeviceEvent::Lost { adapter, reason });
        }
        events
    }

    /// Events of the fallbacks that were not reported yet.
    fn tell_fallbacks(&mut self) -> Vec<DeviceEvent> {
        let all = self.source.as_ref().map_or_else(Vec::new, |source| source.fallbacks());
        let new = all.iter().filter(|it| !self.told.contains(it)).cloned().map(DeviceEvent::Fallback).collect();
        self.told = all;
        new
    }

    fn start_load(&mut self, first: bool) {
        let Some(source) = &self.source else { return };
        self.loads += 1;
        let (source, engine, commands) = (Arc::clone(source), Arc::clone(&self.engine), self.commands.clone());
        match LoadThread::start(self.loads, source, engine, commands) {
            Ok(thread) => self.state = DeviceState::Loading { thread, first },
            Err(error) => drop(self.after_failure(error)),
        }
    }
}

#[cfg(test)]
mod tests;
