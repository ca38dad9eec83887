//! Counters of a device for tests: submitted work and created objects.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Gpu;

/// Counts since a device was opened.
#[derive(Debug, Default)]
pub(super) struct TestCounts {
    pub submits: AtomicU64,
    pub bind_groups: AtomicU64,
    pub passes: AtomicU64,
}

impl Gpu {
    /// Returns the submissions so far.
    pub fn submits(&self) -> u64 {
        self.counts().submits.load(Relaxed)
    }

    /// Returns the bind groups created so far.
    pub fn bind_groups(&self) -> u64 {
        self.counts().bind_groups.load(Relaxed)
    }

    /// Returns the compute passes recorded so far.
    pub fn passes(&self) -> u64 {
        self.counts().passes.load(Relaxed)
    }

    /// Returns the bytes that the driver's allocator holds for this device, if known.
    pub fn allocated(&self) -> Option<u64> {
        self.device()?.generate_allocator_report().map(|report| report.total_reserved_bytes)
    }
}
