//! The VRAM available to the open model. The slider, the bar, the model's card and the device's
//! chip use the same figures.

use thermocline_engine::session::{AdapterReport, DeviceStatus, Engine};

use crate::{adapters::SystemMemory, shell::Shell};
use thermocline_chats::settings::VramBudget;
use thermocline_host::library::ModelId;

/// Minimum step of the slider, in bytes, and maximum number of its positions.
const LEAST_STEP: u64 = 4096;
const POSITIONS: u64 = 512;

/// The VRAM of the device that computes the open model, or would compute it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRoom {
    /// The useful maximum: all of the device, or all that the model and its vision tower can use.
    pub most: u64,
    /// Bytes available now, including those that this program holds.
    pub can_have: u64,
    /// True if `most` is all of the device, not all that the model can use.
    pub whole: bool,
    /// The budget in force.
    pub now: u64,
}

impl BudgetRoom {
    /// The VRAM for the model opened by `engine`. `None` if the CPU should compute it or no device
    /// is known.
    pub fn of(shell: &Shell, model: &ModelId, engine: &Engine) -> Option<Self> {
        let status = engine.device();
        let (adapter, held, in_force) = match &status {
            DeviceStatus::Cpu { reason: None } => return None,
            DeviceStatus::Gpu(memory) => (shell.adapters.named(&memory.adapter), memory.accounted, memory.budget),
            _ => (Some(chosen_adapter(shell, model)?), 0, None),
        };
        let system = adapter.map(|adapter| SystemMemory::of(&adapter.vram)).unwrap_or_default();
        // Estimate until a forecast has counted the bytes: all weights, the KV cache, and scratch
        // memory of a forward pass.
        let weights = engine.model().checkpoint.tensor_bytes();
        let estimated = || weights + engine.telemetry().kv_bytes + weights / 4 + (32 << 20);
        let useful = shell.vram.forecasts.enough(model).unwrap_or_else(estimated) + engine.picture_bytes();
        let can_have = system.can_have(held).unwrap_or(held).max(1);
        let all = system.total.unwrap_or(u64::MAX);
        let now = engine.vram_budget().or(in_force).unwrap_or(can_have);
        let whole = all <= useful;
        let most = if whole { all } else { BudgetGrid::end_of(useful) };
        Some(BudgetRoom { most: most.max(held), can_have, whole, now })
    }

    /// The shown choice: the dragged one, otherwise the stored one, otherwise the budget in force.
    pub fn choice(&self, shell: &Shell, model: &ModelId) -> VramBudget {
        let kept = shell.settings.models.get(&model.key()).and_then(|chosen| chosen.budget);
        shell.vram.dragged.or(kept).unwrap_or(VramBudget::AtMost(self.now.min(self.most)))
    }

    /// The budget of forecasts and of the bar's line: the dragged one, otherwise the one in force,
    /// at most what the model can use.
    pub fn budget(&self, dragged: Option<VramBudget>) -> u64 {
        dragged.map_or(self.now, |choice| choice.limit(self.can_have)).min(self.most)
    }

    /// The shown budget: a chosen maximum is rounded to the slider's grid.
    pub fn told(&self, choice: VramBudget, dragged: Option<VramBudget>) -> u64 {
        match choice {
            VramBudget::AtMost(value) => self.grid(choice).place(value),
            VramBudget::LeaveFree(_) => self.budget(dragged),
        }
    }

    /// The positions of the slider for this kind of choice.
    pub fn grid(&self, choice: VramBudget) -> BudgetGrid {
        let step = BudgetGrid::step_of(self.most);
        let (start, end) = match choice {
            VramBudget::AtMost(_) => (0, self.most),
            // Leaving less memory free does not give the model more.
            VramBudget::LeaveFree(value) => (self.can_have.saturating_sub(self.most).min(value), self.can_have),
        };
        let end = end.max(1).checked_next_multiple_of(step).unwrap_or(end);
        BudgetGrid { start: start / step * step, end, step }
    }

    /// End of a sentence about the slider's maximum.
    pub fn end(&self) -> &'static str {
        if self.whole { "is all of the VRAM" } else { "is the maximum for this model" }
    }
}

/// The positions of a slider, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetGrid {
    /// The minimum.
    pub start: u64,
    /// The maximum.
    pub end: u64,
    /// Distance between two positions.
    pub step: u64,
}

impl BudgetGrid {
    /// The step of a slider up to `most`.
    fn step_of(most: u64) -> u64 {
        (most / POSITIONS).next_power_of_two().max(LEAST_STEP)
    }

    /// The slider's maximum: its first position with room for `useful` bytes.
    fn end_of(useful: u64) -> u64 {
        let step = BudgetGrid::step_of(useful);
        useful.checked_next_multiple_of(step).unwrap_or(useful)
    }

    /// The position nearest to `value`.
    pub fn place(&self, value: u64) -> u64 {
        let value = value.clamp(self.start, self.end);
        value.saturating_add(self.step / 2) / self.step * self.step
    }
}

/// The adapter that would compute a model. `None` means the CPU.
pub fn chosen_adapter<'s>(shell: &'s Shell, model: &ModelId) -> Option<&'s AdapterReport> {
    match shell.settings.models.get(&model.key()).and_then(|chosen| chosen.device.as_deref()) {
        None => shell.adapters.best(),
        Some(name) => shell.adapters.named(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn budgets_are_told_as_the_slider_stands() {
        let room = BudgetRoom { most: 1000 * MIB, can_have: 3000 * MIB, whole: false, now: 777 * MIB + 5 };
        assert_eq!((room.budget(None), room.budget(Some(VramBudget::AtMost(5000 * MIB)))), (777 * MIB + 5, 1000 * MIB));
        assert_eq!(room.budget(Some(VramBudget::LeaveFree(2900 * MIB))), 100 * MIB);
        let choice = VramBudget::AtMost(room.now);
        let (grid, told) = (room.grid(choice), room.told(choice, None));
        assert_eq!((grid.start, grid.step, told % grid.step), (0, 2 * MIB, 0));
        assert!(grid.end >= room.most && told.abs_diff(room.now) <= grid.step / 2, "{grid:?} {told}");
        let free = VramBudget::LeaveFree(2900 * MIB);
        assert_eq!((room.grid(free).start, room.told(free, Some(free))), (2000 * MIB, 100 * MIB));
        let tiny = BudgetRoom { most: 1, can_have: 1, whole: true, now: u64::MAX };
        assert_eq!((tiny.budget(None), tiny.grid(VramBudget::AtMost(7)).place(7)), (1, 0));
        // The end of the slider equals the figure shown for it.
        for useful in [1, 22 * MIB + 7, 47 * MIB + 300_000, 5000 * MIB + 1] {
            let most = BudgetGrid::end_of(useful);
            let room = BudgetRoom { most, can_have: 9000 * MIB, whole: false, now: most };
            let choice = VramBudget::AtMost(most);
            assert_eq!((room.grid(choice).end, room.told(choice, None)), (most, most), "{useful}");
            assert!(most >= useful && most - useful <= room.grid(choice).step);
        }
    }
}
