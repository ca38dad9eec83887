//! Which processor an engine's forward pass has: the CPU, or a device that is loaded in the background and may be lost.

use std::{
    sync::{Arc, PoisonError, mpsc::Sender},
    time::{Duration, Instant},
};

use super::{
    context::Context,
    device::{DeviceEvent, DeviceMemory, DeviceStatus},
    engine::Shared,
    loader::{Ledger, Loaded, Loader, Source},
    worker::Command,
};
use crate::{
    error::{Error, Result},
    model::{Forward, KvCache, Processor},
};

/// How long after a loss the device is tried again; after the last attempt the CPU stays.
const PATIENCE: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// A device that has worked for so long is given all attempts again when it is lost.
const TRUSTED: Duration = Duration::from_secs(60);

/// Where the forward pass is, and what is to become of it.
#[derive(Debug)]
pub(super) struct Residence {
    shared: Arc<Shared>,
    /// For loaders, to report to.
    commands: Sender<Command>,
    /// What to load from; `None`: the CPU was chosen.
    source: Option<Arc<dyn Source>>,
    state: State,
    /// The CPU's processor while a device has its place.
    cpu: Option<Box<dyn Processor>>,
    loads: u64,
    /// Attempts since the device last worked for [`TRUSTED`].
    attempts: usize,
    /// A budget that was too small for the device to be of use.
    too_small: Option<u64>,
    /// Whether weights are on their way to or from the device.
    moving: bool,
    /// Which [`Forward::moves`] were shown last; `None`: that nothing is on a device.
    shown: Option<(u64, u64)>,
}

#[derive(Debug)]
enum State {
    /// On the CPU, for good.
    Cpu,
    /// On the CPU, and the device is being loaded. `first`: nothing was computed yet, and requests wait for it.
    Loading { loader: Loader, first: bool },
    /// On the device.
    Device { memory: Box<dyn Ledger>, since: Instant },
    /// On the CPU until the device is tried again.
    Lost { until: Instant },
}

impl Residence {
    /// On the CPU. With a `source`, loads from there at once.
    pub fn new(shared: Arc<Shared>, commands: Sender<Command>, source: Option<Arc<dyn Source>>) -> Self {
        let mut new = Residence {
            shared,
            commands,
            source,
            state: State::Cpu,
            cpu: None,
            loads: 0,
            attempts: 0,
            too_small: None,
            moving: false,
            shown: None,
        };
        if new.source.is_some() {
            new.load(true);
        }
        new
    }

    /// Whether requests wait.
    pub fn is_awaited(&self) -> bool {
        matches!(self.state, State::Loading { first: true, .. })
    }

    /// Whether a device computes.
    pub fn on_device(&self) -> bool {
        matches!(self.state, State::Device { .. })
    }

    /// Whether [`Residence::settle`] has something to do.
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// When [`Residence::tick`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Lost { until } => Some(until),
            _ => None,
        }
    }

    /// Tries a lost device again when it is time.
    pub fn tick(&mut self) {
        if self.deadline().is_some_and(|until| Instant::now() >= until) {
            self.load(false);
        }
    }

    /// Shows what the device's memory is used for.
    pub fn account(&self) {
        let telemetry = &self.shared.telemetry;
        let memory = match &self.state {
            State::Device { memory, .. } => Some(DeviceMemory { moving: self.moving, ..memory.read() }),
            _ => None,
        };
        telemetry.device_bytes.set(memory.as_ref().map_or(0, |memory| memory.accounted));
        telemetry.device_budget.set(memory.as_ref().and_then(|memory| memory.budget).unwrap_or(0));
        if let Some(memory) = memory {
            self.shared.device.write(DeviceStatus::Gpu(memory));
        }
    }

    /// Shows what of the model is on the device, if that has changed.
    pub fn show(&mut self, forward: &Forward) {
        let now = self.on_device().then(|| (self.loads, forward.moves()));
        if now != self.shown {
            self.shown = now;
            let resident = now.and_then(|_| forward.resident()).map(Arc::new);
            *self.shared.resident.lock().unwrap_or_else(PoisonError::into_inner) = resident;
        }
    }

    /// Moves to what `source` gives, or stays on the CPU; what was there before is given up first.
    pub fn choose(&mut self, forward: &mut Forward, source: Option<Arc<dyn Source>>) {
        self.leave(forward);
        self.source = source;
        self.retry();
    }

    /// Holds at most `bytes` on the device from now on: what is over has been released when this returns, and `contexts` (all
    /// there are) have moved with it. With too few the CPU computes; with more again the device comes back.
    pub fn set_budget(
        &mut self,
        forward: &mut Forward,
        contexts: &mut [&mut Context],
        bytes: u64,
    ) -> Option<DeviceEvent> {
        match &self.state {
            // What is loaded is asked again when it is there; what is lost, when it comes back.
            State::Loading { .. } | State::Lost { .. } => None,
            State::Cpu if self.too_small.is_some_and(|small| bytes > small) => {
                self.retry();
                None
            }
            State::Cpu => None,
            State::Device { memory, .. } => {
                let now = memory.read();
                if now.budget == Some(bytes) {
                    return None;
                }
                self.shared.terms.reserve_nothing();
                let done = match bytes {
                    0 => Err(Error::Memory { what: "VRAM budget", wanted: now.accounted, available: 0 }),
                    bytes => forward.set_budget(bytes, &mut caches(contexts)),
                };
                match done {
                    Ok(()) => {
                        self.moving = true;
                        self.account();
                        None
                    }
                    Err(error @ Error::Gpu { .. }) => {
                        contexts.iter_mut().filter(|context| context.on_device()).for_each(|context| context.release());
                        self.fail(forward, error)
                    }
                    Err(error) => {
                        contexts.iter_mut().for_each(|context| context.bring_home(forward));
                        self.too_small = Some(bytes);
                        self.leave(forward);
                        self.failed(error)
                    }
                }
            }
        }
    }

    /// Bytes held on the device.
    pub fn held(&self) -> u64 {
        match &self.state {
            State::Device { memory, .. } => memory.read().accounted,
            _ => 0,
        }
    }

    /// Plans anew under the same budget, because what plans depend on has changed. Returns whether that went well.
    pub fn replan(&mut self, forward: &mut Forward, contexts: &mut [&mut Context]) -> bool {
        let State::Device { memory, .. } = &self.state else { return false };
        let bytes = memory.read().budget.unwrap_or(u64::MAX);
        match forward.set_budget(bytes, &mut caches(contexts)) {
            Ok(()) => {
                self.moving = true;
                true
            }
            // Things stay as they are; a device that is lost is noticed with the next token.
            Err(error) => {
                tracing::warn!(%error, "the plan stays as it is");
                false
            }
        }
    }

    /// Plans anew because the speeds of the machine are known better now: the device may turn out to be the slower one after all,
    /// or of use.
    pub fn reconsider(&mut self, forward: &mut Forward, contexts: &mut [&mut Context]) -> Option<DeviceEvent> {
        let bytes = match &self.state {
            State::Device { memory, .. } => memory.read().budget.unwrap_or(u64::MAX),
            State::Cpu => {
                if let DeviceStatus::Cpu { reason: Some(reason) } = self.shared.device.read()
                    && matches!(*reason, Error::SlowGpu)
                {
                    self.retry();
                }
                return None;
            }
            State::Loading { .. } | State::Lost { .. } => return None,
        };
        match forward.set_budget(bytes, &mut caches(contexts)) {
            Ok(()) => self.moving = true,
            Err(error @ Error::SlowGpu) => {
                contexts.iter_mut().for_each(|context| context.bring_home(forward));
                self.leave(forward);
                return self.failed(error);
            }
            Err(error) => tracing::warn!(%error, "the plan stays as it is"),
        }
        None
    }

    /// Moves a bounded number of bytes, if any are to be moved; where neurons are to follow the text (`follows`), some always
    /// may be.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn settle(&mut self, follows: bool, forward: &mut Forward, contexts: &mut [&mut Context]) -> Result<()> {
        let due = self.moving || (follows && self.on_device());
        if !due {
            return Ok(());
        }
        match forward.settle(&mut caches(contexts)) {
            Ok(more) => self.moving = more,
            Err(error @ Error::Gpu { .. }) => return Err(error),
            // There is less room than the budget promises: things stay as they are.
            Err(error) => {
                tracing::warn!(%error, "the boundary does not move any further");
                self.moving = false;
            }
        }
        Ok(())
    }

    /// Tries the device again, now and with all attempts, unless it is in use or already on its way.
    pub fn retry(&mut self) {
        match self.state {
            State::Device { .. } | State::Loading { .. } => {}
            State::Cpu | State::Lost { .. } if self.source.is_some() => {
                self.attempts = 0;
                self.too_small = None;
                self.shared.device.write(DeviceStatus::Loading { done: 0, total: 0 });
                self.load(false);
            }
            State::Cpu | State::Lost { .. } => self.shared.device.write(DeviceStatus::Cpu { reason: None }),
        }
    }

    /// Load `number` has ended: the forward pass moves to the device if it worked. `None` if nobody waits for it any more.
    pub fn loaded(&mut self, forward: &mut Forward, number: u64, result: Result<Loaded>) -> Option<DeviceEvent> {
        let budget = match &self.state {
            State::Loading { loader, .. } if loader.number == number => loader.budget,
            _ => return None,
        };
        match result {
            Ok(Loaded { processor, memory }) => {
                self.moving = true;
                self.cpu = Some(forward.replace(&self.shared.model, processor));
                self.state = State::Device { memory, since: Instant::now() };
                // Who hears of the device can ask what is on it.
                self.show(forward);
                self.account();
                let State::Device { memory, .. } = &self.state else { return None };
                let adapter = memory.read().adapter;
                tracing::info!(adapter, "the model is loaded");
                Some(DeviceEvent::Gpu { adapter })
            }
            Err(error) => {
                if matches!(error, Error::Memory { .. }) {
                    self.too_small = budget;
                }
                self.failed(error)
            }
        }
    }

    /// The device failed with `error`: the forward pass moves to the CPU.
    pub fn fail(&mut self, forward: &mut Forward, error: Error) -> Option<DeviceEvent> {
        if let State::Device { since, .. } = &self.state
            && since.elapsed() > TRUSTED
        {
            self.attempts = 0;
        }
        self.leave(forward);
        self.failed(error)
    }

    /// To the CPU.
    fn leave(&mut self, forward: &mut Forward) {
        self.state = State::Cpu;
        self.moving = false;
        if let Some(cpu) = self.cpu.take() {
            forward.replace(&self.shared.model, cpu);
        }
    }

    /// A device that is lost may come back (and while it is away, its adapter may be missing); whatever else is wrong will
    /// still be wrong in a second.
    fn failed(&mut self, error: Error) -> Option<DeviceEvent> {
        let was_lost = matches!(self.shared.device.read(), DeviceStatus::Lost { .. });
        let delay = PATIENCE.get(self.attempts).filter(|_| was_lost || matches!(error, Error::Gpu { .. }));
        let Some(delay) = delay else {
            tracing::info!(%error, "the CPU computes");
            let reason = Arc::new(error);
            self.state = State::Cpu;
            self.shared.device.write(DeviceStatus::Cpu { reason: Some(Arc::clone(&reason)) });
            return Some(DeviceEvent::Cpu { reason });
        };
        self.attempts += 1;
        self.state = State::Lost { until: Instant::now() + *delay };
        match error {
            // That it is still lost is no news.
            Error::Gpu { adapter, reason } if !was_lost => {
                self.shared.device.write(DeviceStatus::Lost { adapter: adapter.clone(), reason: reason.clone() });
                Some(DeviceEvent::Lost { adapter, reason })
            }
            _ => None,
        }
    }

    fn load(&mut self, first: bool) {
        let Some(source) = &self.source else { return };
        self.loads += 1;
        let (source, shared, commands) = (Arc::clone(source), Arc::clone(&self.shared), self.commands.clone());
        match Loader::start(self.loads, source, shared, commands) {
            Ok(loader) => self.state = State::Loading { loader, first },
            Err(error) => drop(self.failed(error)),
        }
    }
}

/// The caches there are.
fn caches<'c>(contexts: &'c mut [&mut Context]) -> Vec<&'c mut KvCache> {
    contexts.iter_mut().filter_map(|context| context.kv_mut()).collect()
}

#[cfg(test)]
mod tests;
