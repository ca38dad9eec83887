//! The place of the drafter: on the device of the model if there is room for both, else on the CPU.

use super::{super::device_drafter::DeviceDrafter, EngineWorker};

impl EngineWorker<'_> {
    /// Moves the drafter to the device if it was loaded there, and back to the CPU if the device is
    /// no longer in use.
    pub(super) fn place_drafter(&mut self, loaded: Option<DeviceDrafter>) {
        if !self.device.on_device() {
            self.move_drafter_to_cpu();
        } else if let (Some(drafter), Some(loaded)) = (&mut self.drafter, loaded) {
            drafter.move_to_device(loaded);
            self.conversations.iter_mut().for_each(|it| it.context.draft = None);
        }
    }

    /// Lets the running generation of a session follow the drafter again, after the drafter has
    /// failed on a device.
    pub(super) fn allow_drafter(&mut self, at: usize) {
        if let Some((generation, _)) = &mut self.conversations[at].running {
            generation.drafter_failed = false;
        }
    }

    /// Moves the drafter to the CPU if a budget of `bytes` is too small for it.
    pub(super) fn fit_drafter(&mut self, bytes: u64) {
        if self.drafter.as_ref().and_then(|drafter| drafter.least_budget()).is_some_and(|least| bytes < least) {
            self.move_drafter_to_cpu();
        }
    }

    /// Moves the drafter to the CPU, and frees its memory on the device. True if it was there.
    pub(super) fn move_drafter_to_cpu(&mut self) -> bool {
        let moved = self.drafter.as_mut().is_some_and(|drafter| drafter.move_to_cpu());
        if moved {
            self.conversations.iter_mut().for_each(|it| it.context.draft = None);
        }
        moved
    }
}
