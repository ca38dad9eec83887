//! Simulated failures: tests make a device fail at a chosen moment, on any driver.

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
    /// The heap that the CPU writes and the device reads is full. Allocations beyond a number of
    /// bytes fail.
    MappedHeap,
    /// An allocation succeeds, but its memory is missing at first use.
    FirstUse,
    /// A submission finishes, but its results never arrive.
    Hang,
    /// The adapter's subgroups differ from what it reports.
    Subgroups,
    /// The clock of submissions ([`crate::DevicePace`]) reports a fixed number of picoseconds per
    /// unit of work, like a device of that speed.
    WorkClock,
    /// The process ends within a step, as in a driver crash. The number is ignored.
    Abort(RiskyStep),
}

/// At most one failure, at the `n`-th passage of a point, counted from 1. For a full heap, `n` is
/// its bytes. For the clock, `n` is picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults(pub Option<(FaultPoint, u64)>);

/// A change of a kernel's source. Tests simulate a driver with it that computes the kernel wrongly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMutation {
    /// Name of the kernel.
    pub kernel: String,
    /// Part of the source to replace.
    pub from: String,
    /// Replacement.
    pub to: String,
}

impl KernelMutation {
    /// Returns `source`, changed if it is the source of the mutated kernel.
    pub(crate) fn apply(&self, kernel: &str, source: String) -> String {
        if kernel == self.kernel { source.replace(&self.from, &self.to) } else { source }
    }
}

/// Counts the passages of the failure's point.
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

    /// Pauses or resumes counting and failing.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    /// True while counting is paused.
    pub fn paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    /// Ends the process if the failure is set for `step`.
    pub fn abort_within(&self, step: RiskyStep) {
        if matches!(self.faults.0, Some((FaultPoint::Abort(chosen), _)) if chosen == step) {
            std::process::abort();
        }
    }

    /// Counts a passage of `point`. True if this passage must fail.
    pub fn at(&self, point: FaultPoint) -> bool {
        match self.faults.0 {
            Some((chosen, n)) if chosen == point && !self.paused() => self.passed.fetch_add(1, Relaxed) + 1 == n,
            _ => false,
        }
    }

    /// Returns the picoseconds per unit of work, if the simulated clock is on.
    pub fn work_clock(&self) -> Option<u64> {
        self.faults.0.filter(|(point, _)| *point == FaultPoint::WorkClock).map(|(_, picoseconds)| picoseconds)
    }

    /// True if the heap of mapped memory cannot hold `bytes`.
    pub fn is_full(&self, bytes: u64) -> bool {
        matches!(self.faults.0, Some((FaultPoint::MappedHeap, room)) if bytes > room)
    }
}
