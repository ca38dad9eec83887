//! Failures on purpose: how tests make a device fail at a chosen moment, on any driver.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::RiskyStep;

/// A point at which a device can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// An allocation is refused as if memory were exhausted.
    Allocation,
    /// The device is lost before a submission.
    Submit,
    /// The device is lost between a submission and the arrival of its results.
    Readback,
    /// The driver does not compile a kernel.
    Compile,
    /// The device is lost while a kernel is compiled.
    CompileLost,
    /// The driver's validation refuses a call that cannot fail.
    Validation,
    /// The heap of memory that the CPU writes and the device reads is full: no allocation succeeds that takes it past so many bytes.
    MappedHeap,
    /// An allocation succeeds, and the memory turns out not to be there when it is first used.
    FirstUse,
    /// A submission is done, and its results never arrive.
    Hang,
    /// The adapter has other subgroups than it says.
    Subgroups,
    /// The clock of submissions ([`crate::DevicePace`]) tells time by the work, so many
    /// picoseconds a unit, as on a device of that speed.
    WorkClock,
    /// The process ends within a step, as by a fault of a driver; whatever the number of the passage.
    Abort(RiskyStep),
}

/// At most one failure: at the `n`-th passage, from 1, of a point; a full heap is one of `n` bytes, a clock one of `n`
/// picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults(pub Option<(FaultPoint, u64)>);

/// A change of a kernel's text: a driver that computes it wrongly, as tests make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMutation {
    /// Name of the kernel.
    pub kernel: String,
    /// A piece of its text.
    pub from: String,
    /// The text in its place.
    pub to: String,
}

impl KernelMutation {
    /// The text `source` of `kernel`, changed if that is the kernel.
    pub(crate) fn apply(&self, kernel: &str, source: String) -> String {
        if kernel == self.kernel { source.replace(&self.from, &self.to) } else { source }
    }
}

/// Counts passages.
#[derive(Debug, Default)]
pub(crate) struct FaultCounter {
    faults: Faults,
    passed: AtomicU64,
    paused: AtomicBool,
}

impl FaultCounter {
    pub fn new(faults: Faults) -> Self {
        FaultCounter { faults, passed: AtomicU64::new(0), paused: AtomicBool::new(false) }
    }

    /// From here on nothing is counted and nothing fails, or everything again.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    /// True while nothing is counted.
    pub fn paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    /// Ends the process if it has to end within `step`.
    pub fn abort_within(&self, step: RiskyStep) {
        if matches!(self.faults.0, Some((FaultPoint::Abort(chosen), _)) if chosen == step) {
            std::process::abort();
        }
    }

    /// True if this passage of `point` has to fail.
    pub fn at(&self, point: FaultPoint) -> bool {
        match self.faults.0 {
            Some((chosen, n)) if chosen == point && !self.paused() => self.passed.fetch_add(1, Relaxed) + 1 == n,
            _ => false,
        }
    }

    /// Picoseconds that a unit of work takes, if the clock tells time by the work.
    pub fn work_clock(&self) -> Option<u64> {
        self.faults.0.filter(|(point, _)| *point == FaultPoint::WorkClock).map(|(_, picoseconds)| picoseconds)
    }

    /// True if the heap of mapped memory is full, of which `bytes` would be held.
    pub fn is_full(&self, bytes: u64) -> bool {
        matches!(self.faults.0, Some((FaultPoint::MappedHeap, room)) if bytes > room)
    }
}
