//! Memory accounting: the arena allocates every buffer of the engine on a device and counts its
//! bytes by purpose, under a budget.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    FaultPoint,
    trust::{FaultCounter, Health},
};
use thermocline_base::error::{Error, Result, ScarceMemory};

/// Purpose of device memory, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Query, key, value and output matrices.
    Attention,
    /// Gate, up and down matrices, experts and their routers.
    Ffn,
    /// The head (output matrix).
    Head,
    /// Norms and biases.
    Vectors,
    /// KV caches of contexts.
    Kv,
    /// Registers and temporaries of the forward pass.
    Scratch,
    /// Data in transfer between CPU and device.
    Staging,
    /// Activation predictors.
    Predictor,
}

impl Purpose {
    /// Every purpose, in the order of a report.
    pub const ALL: [Purpose; 8] = [
        Purpose::Attention,
        Purpose::Ffn,
        Purpose::Head,
        Purpose::Vectors,
        Purpose::Kv,
        Purpose::Scratch,
        Purpose::Staging,
        Purpose::Predictor,
    ];

    /// Returns the name, as shown and printed.
    pub const fn name(self) -> &'static str {
        match self {
            Purpose::Attention => "attention weights",
            Purpose::Ffn => "FFN weights",
            Purpose::Head => "head",
            Purpose::Vectors => "norms and biases",
            Purpose::Kv => "KV cache",
            Purpose::Scratch => "scratch",
            Purpose::Staging => "staging",
            Purpose::Predictor => "predictors",
        }
    }

    /// Returns the kind of memory, for errors.
    fn memory_kind(self) -> ScarceMemory {
        if self == Purpose::Kv { ScarceMemory::KvCache } else { ScarceMemory::Gpu }
    }
}

/// How the device uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Kernels read and write the buffer; copies read and write it as well.
    Storage,
    /// [`Usage::Storage`] whose contents can also be the grid of an indirect dispatch.
    Indirect,
    /// The CPU writes the buffer; copies read it.
    Upload,
    /// Copies write the buffer; the CPU reads it.
    Readback,
    /// Queries write their results into the buffer; copies read it.
    Query,
}

impl From<Usage> for wgpu::BufferUsages {
    fn from(usage: Usage) -> Self {
        let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        match usage {
            Usage::Storage => storage,
            Usage::Indirect => storage | wgpu::BufferUsages::INDIRECT,
            Usage::Upload => wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            Usage::Readback => wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            Usage::Query => wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
        }
    }
}

/// Smallest budget, in bytes, that also limits the blocks of a few MiB that the driver's allocator
/// reserves per kind of memory. With a smaller budget these blocks would use all of it.
pub(super) const MEASURED_FROM: u64 = 64 << 20;

/// The budget, and the bytes in use by purpose.
#[derive(Debug)]
struct Ledger {
    budget: AtomicU64,
    total: AtomicU64,
    by_purpose: [AtomicU64; Purpose::ALL.len()],
    /// Buffers created since the device was opened.
    made: AtomicU64,
    faults: FaultCounter,
}

/// Use of some memory: its purpose in reports and its name in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Purpose in reports.
    pub purpose: Purpose,
    /// Name in errors.
    pub what: &'static str,
}

/// Allocates buffers within the budget. The arena of a device that only counts applies the same
/// rules without allocating memory.
#[derive(Debug, Clone)]
pub struct Arena {
    /// `None`: buffers are only counted.
    device: Option<wgpu::Device>,
    health: Health,
    max_buffer: u64,
    ledger: Arc<Ledger>,
}

/// A buffer on the device. Dropping its last clone frees its bytes.
#[derive(Debug, Clone)]
pub struct Buffer(Arc<BufferInner>);

#[derive(Debug)]
struct BufferInner {
    /// `None` on a device that only counts.
    raw: Option<wgpu::Buffer>,
    bytes: u64,
    purpose: Purpose,
    ledger: Arc<Ledger>,
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        self.ledger.give_back(self.purpose, self.bytes);
    }
}

impl Buffer {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Returns the driver's buffer; `None` on a device that only counts.
    pub(super) fn raw(&self) -> Option<&wgpu::Buffer> {
        self.0.raw.as_ref()
    }
}

impl Ledger {
    /// Takes `bytes` from the budget. The error is the number of bytes left in the budget.
    fn reserve(&self, purpose: Purpose, bytes: u64) -> std::result::Result<(), u64> {
        let budget = self.budget.load(Relaxed);
        let grown = |total: u64| total.checked_add(bytes).filter(|total| *total <= budget);
        self.total.fetch_update(Relaxed, Relaxed, grown).map_err(|total| budget.saturating_sub(total))?;
        self.by_purpose[purpose as usize].fetch_add(bytes, Relaxed);
        Ok(())
    }

    fn give_back(&self, purpose: Purpose, bytes: u64) {
        self.by_purpose[purpose as usize].fetch_sub(bytes, Relaxed);
        self.total.fetch_sub(bytes, Relaxed);
    }
}

impl Arena {
    pub(super) fn new(
        device: Option<wgpu::Device>,
        health: Health,
        budget: u64,
        max_buffer: u64,
        faults: FaultCounter,
    ) -> Self {
        let ledger = Ledger {
            budget: AtomicU64::new(budget),
            total: AtomicU64::new(0),
            by_purpose: Default::default(),
            made: AtomicU64::new(0),
            faults,
        };
        Arena { device, health, max_buffer, ledger: Arc::new(ledger) }
    }

    /// Returns the counter of simulated failures.
    pub(super) fn faults(&self) -> &FaultCounter {
        &self.ledger.faults
    }

    /// Allocates a buffer of zeros. `bytes` is rounded up to a multiple of 16 and is at least 16.
    /// An upload buffer is mapped.
    ///
    /// # Errors
    /// [`Error::Memory`] if `bytes` exceeds the budget, the adapter's limit or the driver's free
    /// memory. [`Error::Gpu`] if the device is lost.
    pub fn buffer(&self, purpose: Purpose, what: &'static str, bytes: u64, usage: Usage) -> Result<Buffer> {
        self.health.check()?;
        let size = bytes.max(1).checked_next_multiple_of(16).unwrap_or(u64::MAX);
        let kind = purpose.memory_kind();
        let refused = |available: u64| Error::Memory { kind, what, wanted: size, available };
        if size > self.max_buffer {
            return Err(refused(self.max_buffer));
        }
        self.ledger.reserve(purpose, size).map_err(refused)?;
        // From here on, dropping `buffer` on an error returns its bytes to the budget.
        let mut buffer = BufferInner { raw: None, bytes: size, purpose, ledger: Arc::clone(&self.ledger) };
        let full = usage == Usage::Upload && self.ledger.faults.is_full(self.used_for(Purpose::Staging));
        if full || self.ledger.faults.at(FaultPoint::Allocation) {
            return Err(refused(0));
        }
        if self.ledger.faults.at(FaultPoint::FirstUse) {
            self.health.hollow.store(true, Relaxed);
        }
        if let Some(device) = &self.device {
            buffer.raw = Some(self.on_device(device, purpose, what, size, usage)?);
        }
        if let Some(reserved) = self.reserved().filter(|reserved| *reserved > self.budget()) {
            return Err(refused(self.budget().saturating_sub(reserved.saturating_sub(size))));
        }
        self.ledger.made.fetch_add(1, Relaxed);
        Ok(Buffer(Arc::new(buffer)))
    }

    /// Allocates the driver's buffer of `size` bytes.
    fn on_device(
        &self,
        device: &wgpu::Device,
        purpose: Purpose,
        what: &'static str,
        size: u64,
        usage: Usage,
    ) -> Result<wgpu::Buffer> {
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size,
            usage: usage.into(),
            mapped_at_creation: usage == Usage::Upload,
        });
        let failed = [validation, internal, memory].map(|scope| pollster::block_on(scope.pop()));
        let Some(error) = failed.into_iter().flatten().next() else { return Ok(buffer) };
        self.health.check()?;
        Err(match error {
            wgpu::Error::OutOfMemory { .. } => Error::memory(purpose.memory_kind(), what, size, 0),
            error => self.health.failed(format_args!("the driver cannot create a buffer for {what}"), &error),
        })
    }

    /// Bytes that the driver's allocator holds. `None` if the driver does not report them or the
    /// budget does not limit them.
    fn reserved(&self) -> Option<u64> {
        let counts = (MEASURED_FROM..u64::MAX).contains(&self.budget());
        let device = self.device.as_ref().filter(|_| counts)?;
        device.generate_allocator_report().map(|report| report.total_reserved_bytes)
    }

    /// Changes the budget. It must not be below the bytes in use.
    ///
    /// # Errors
    /// [`Error::Memory`] if more bytes are in use. The budget then stays unchanged.
    pub fn set_budget(&self, bytes: u64) -> Result<()> {
        let wanted = self.used();
        if wanted > bytes {
            return Err(Error::memory(ScarceMemory::Gpu, "VRAM budget", wanted, bytes));
        }
        self.ledger.budget.store(bytes, Relaxed);
        Ok(())
    }

    /// Returns the budget in bytes.
    pub fn budget(&self) -> u64 {
        self.ledger.budget.load(Relaxed)
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.ledger.total.load(Relaxed)
    }

    /// Returns the bytes in use for `purpose`.
    pub fn used_for(&self, purpose: Purpose) -> u64 {
        self.ledger.by_purpose[purpose as usize].load(Relaxed)
    }

    /// Returns the bytes left in the budget.
    pub fn available(&self) -> u64 {
        self.budget().saturating_sub(self.used())
    }

    /// Returns the number of buffers created so far.
    pub fn made(&self) -> u64 {
        self.ledger.made.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gpu, GpuOptions};

    #[test]
    fn arena_keeps_buffers_and_reserved_blocks_within_the_budget() {
        for (budget, bytes) in [(1 << 20, 200 << 10), (MEASURED_FROM, 3 << 20), (MEASURED_FROM + 12_345, 9 << 20)] {
            let gpu = Gpu::open(&GpuOptions { budget: Some(budget), ..GpuOptions::first() }).unwrap();
            let mut held = Vec::new();
            let refusal = loop {
                match gpu.arena().buffer(Purpose::Ffn, "test", bytes, Usage::Storage) {
                    Ok(buffer) => held.push(buffer),
                    Err(error) => break error,
                }
                assert!(gpu.arena().used() <= budget);
                let reserved = gpu.allocated().unwrap();
                assert!(budget < MEASURED_FROM || reserved <= budget, "{reserved} of {budget}");
            };
            assert!(matches!(refusal, Error::Memory { wanted, available, .. } if wanted > available), "{refusal}");
            // The allocator's blocks use some of the budget, but not most of it.
            assert!(gpu.arena().used() > budget / 2, "{} of {budget}", gpu.arena().used());
            held.clear();
            assert_eq!(gpu.arena().used_for(Purpose::Ffn), 0);
        }
    }
}
