//! Counts of a device for tests: how much work it was given, and how much was made for it anew.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Gpu;

/// Counts since a device was opened.
#[derive(Debug, Default)]
pub(super) struct TestCounts {
    pub submits: AtomicU64,
    pub bind_groups: AtomicU64,
}

impl Gpu {
    /// Submissions so far.
    pub fn submits(&self) -> u64 {
        self.counts().submits.load(Relaxed)
    }

    /// Bind groups made so far.
    pub fn bind_groups(&self) -> u64 {
        self.counts().bind_groups.load(Relaxed)
    }

    /// Bytes the driver's allocator holds for this device, where known.
    pub fn allocated(&self) -> Option<u64> {
        self.device()?.generate_allocator_report().map(|report| report.total_reserved_bytes)
    }
}
