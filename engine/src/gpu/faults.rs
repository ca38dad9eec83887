//! Failures on purpose: how tests make a device fail at a chosen moment, on any driver.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A point at which a device can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// An allocation is refused as if memory were exhausted.
    Allocation,
    /// The device is lost before a submission.
    Submit,
    /// The device is lost between a submission and the arrival of its results.
    Readback,
}

/// At most one failure: at the `n`-th passage, from 1, of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults(pub Option<(FaultPoint, u64)>);

/// Counts passages.
#[derive(Debug, Default)]
pub(super) struct FaultCounter {
    faults: Faults,
    passed: AtomicU64,
}

impl FaultCounter {
    pub fn new(faults: Faults) -> Self {
        FaultCounter { faults, passed: AtomicU64::new(0) }
    }

    /// True if this passage of `point` has to fail.
    pub fn at(&self, point: FaultPoint) -> bool {
        match self.faults.0 {
            Some((chosen, n)) if chosen == point => self.passed.fetch_add(1, Relaxed) + 1 == n,
            _ => false,
        }
    }
}
