//! The budget of a device, and the weights and contexts that move when a plan changes.

use super::{DeviceManager, DeviceState};
use crate::session::{
    context::SessionContext,
    device::{DeviceEvent, DeviceStatus},
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_run::runtime::{Forward, KvCache};

/// If the hot set adapts to the text, one of this many completed moves is noted for the pager.
const NOTED_MOVES: u32 = 256;

impl DeviceManager {
    /// Sets the largest number of `bytes` to hold on the device. On return the excess has been
    /// released, and `contexts` (all contexts) have moved. If the bytes are too few, the CPU
    /// computes. Once they suffice again, the device is loaded again.
    pub fn set_budget(
        &mut self,
        forward: &mut Forward,
        contexts: &mut [&mut SessionContext],
        bytes: u64,
    ) -> Vec<DeviceEvent> {
        match &self.state {
            // The budget is applied after the load, or after the device has returned.
            DeviceState::Loading { .. } | DeviceState::Lost { .. } => Vec::new(),
            DeviceState::Cpu if self.too_small.is_some_and(|small| bytes > small) => {
                self.retry();
                Vec::new()
            }
            DeviceState::Cpu => Vec::new(),
            DeviceState::InUse { memory, .. } => {
                let now = memory.read();
                if now.budget == Some(now.limited(bytes)) {
                    return Vec::new();
                }
                self.engine.planner.clear_reserve();
                let done = match bytes {
                    0 => Err(Error::memory(ScarceMemory::Gpu, "VRAM budget", now.accounted, 0)),
                    bytes => change_budget(forward, contexts, bytes),
                };
                match done {
                    Ok(()) => {
                        (self.moving, self.settled_moves) = (true, 0);
                        self.publish_memory();
                        Vec::new()
                    }
                    Err(error @ Error::Gpu { .. }) => {
                        contexts
                            .iter_mut()
                            .filter(|context| context.on_device())
                            .for_each(|context| context.drop_cache());
                        self.device_failed(forward, error)
                    }
                    Err(error) => {
                        self.too_small = Some(bytes);
                        self.leave_device(forward, contexts, error)
                    }
                }
            }
        }
    }

    /// Solves for a new plan under the same budget, after an input of plans has changed. True on
    /// success.
    pub fn replan(&mut self, forward: &mut Forward, contexts: &mut [&mut SessionContext]) -> bool {
        let DeviceState::InUse { memory, .. } = &self.state else { return false };
        let bytes = memory.read().budget.unwrap_or(u64::MAX);
        match change_budget(forward, contexts, bytes) {
            Ok(()) => {
                self.moving = true;
                true
            }
            // The placement stays. If the device is lost, the next token reveals it.
            Err(error) => {
                tracing::warn!(%error, "the placement stays unchanged");
                false
            }
        }
    }

    /// Solves for a new plan after the machine's speeds have changed. The device may now be
    /// expected to be slower than the CPU, or faster.
    pub fn replan_for_new_speeds(
        &mut self,
        forward: &mut Forward,
        contexts: &mut [&mut SessionContext],
    ) -> Vec<DeviceEvent> {
        let bytes = match &self.state {
            DeviceState::InUse { memory, .. } => memory.read().budget.unwrap_or(u64::MAX),
            DeviceState::Cpu => {
                if let DeviceStatus::Cpu { reason: Some(reason) } = self.engine.device.status.read()
                    && matches!(*reason, Error::SlowGpu)
                {
                    self.retry();
                }
                return Vec::new();
            }
            DeviceState::Loading { .. } | DeviceState::Lost { .. } => return Vec::new(),
        };
        match change_budget(forward, contexts, bytes) {
            Ok(()) => self.moving = true,
            Err(error @ Error::SlowGpu) => return self.leave_device(forward, contexts, error),
            Err(error) => tracing::warn!(%error, "the placement stays unchanged"),
        }
        Vec::new()
    }

    /// Moves a bounded number of bytes, if any remain to be moved. If the hot set adapts to the
    /// text (`adapts`), bytes may have to be moved at any time.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn move_weights(
        &mut self,
        adapts: bool,
        forward: &mut Forward,
        contexts: &mut [&mut SessionContext],
    ) -> Result<()> {
        let due = self.moving || (adapts && self.on_device());
        if !due {
            return Ok(());
        }
        let Some((model, residency)) = forward.residency() else {
            self.moving = false;
            return Ok(());
        };
        match residency.settle(model, &mut caches(contexts)) {
            Ok(more) => {
                if self.moving && !more {
                    self.settled_moves = self.settled_moves.wrapping_add(1);
                    // The pager then asks the system about all pages. That takes longer than an
                    // exchange of experts.
                    if !adapts || self.settled_moves % NOTED_MOVES == 1 {
                        self.note_reads();
                    }
                }
                self.moving = more;
            }
            Err(error @ Error::Gpu { .. }) => return Err(error),
            // The device has less memory than the budget promises, so the placement stays.
            Err(error) => {
                tracing::warn!(%error, "the placement stays unchanged");
                self.moving = false;
            }
        }
        Ok(())
    }

    /// Copies `contexts` to RAM and moves the forward pass to the CPU, because of `error`.
    fn leave_device(
        &mut self,
        forward: &mut Forward,
        contexts: &mut [&mut SessionContext],
        error: Error,
    ) -> Vec<DeviceEvent> {
        contexts.iter_mut().for_each(|context| context.move_to_ram(forward));
        self.move_to_cpu(forward);
        self.after_failure(error)
    }
}

/// Limits the device to `bytes` from now on.
fn change_budget(forward: &mut Forward, contexts: &mut [&mut SessionContext], bytes: u64) -> Result<()> {
    let Some((model, residency)) = forward.residency() else { return Ok(()) };
    residency.set_budget(model, bytes, &mut caches(contexts))
}

/// The caches of `contexts`.
fn caches<'c>(contexts: &'c mut [&mut SessionContext]) -> Vec<&'c mut KvCache> {
    contexts.iter_mut().filter_map(|context| context.kv_mut()).collect()
}
