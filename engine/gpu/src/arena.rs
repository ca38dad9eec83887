//! The accountant: every byte the engine has on a device is allocated and counted here, by purpose, under a budget.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    FaultPoint,
    trust::{FaultCounter, Health},
};
use thermocline_base::error::{Error, Result, ScarceMemory};

/// Purpose of device memory, by which it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Query, key, value and output matrices.
    Attention,
    /// Gate, up and down matrices, experts and their routers.
    Ffn,
    /// The head.
    Head,
    /// Norms and biases.
    Vectors,
    /// Keys and values of contexts.
    Kv,
    /// Registers and temporaries of the forward pass.
    Scratch,
    /// On their way up or down.
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

    /// Name, as shown and printed.
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

    /// Kind of the memory, for errors.
    fn memory_kind(self) -> ScarceMemory {
        if self == Purpose::Kv { ScarceMemory::KvCache } else { ScarceMemory::Gpu }
    }
}

/// Use of a buffer by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Read and written by kernels, copied from and to.
    Storage,
    /// [`Usage::Storage`] that also holds the grids of indirect dispatches.
    Indirect,
    /// Written by the CPU, copied from.
    Upload,
    /// Copied to, read by the CPU.
    Readback,
    /// Receives the results of queries, copied from.
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

/// Least budget, in bytes, that holds not only for buffers but also for the blocks of a few MiB per kind of memory that the driver's
/// allocator reserves for them. Smaller budgets would be all blocks.
pub(super) const MEASURED_FROM: u64 = 64 << 20;

/// Bytes in use, by purpose, and the budget.
#[derive(Debug)]
struct Ledger {
    budget: AtomicU64,
    total: AtomicU64,
    by_purpose: [AtomicU64; Purpose::ALL.len()],
    /// Buffers made since the device was opened.
    made: AtomicU64,
    faults: FaultCounter,
}

/// The use of some memory: the purpose that it is reported under, and its name in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Purpose.
    pub purpose: Purpose,
    /// Name.
    pub what: &'static str,
}

/// Makes buffers, as long as the budget lasts. That of a device that only counts makes them without memory, under the same rules.
#[derive(Debug, Clone)]
pub struct Arena {
    /// `None`: buffers are only counted.
    device: Option<wgpu::Device>,
    health: Health,
    max_buffer: u64,
    ledger: Arc<Ledger>,
}

/// A buffer on the device. Its bytes are free again when the last clone of it is gone.
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
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The driver's buffer; `None` on a device that only counts.
    pub(super) fn raw(&self) -> Option<&wgpu::Buffer> {
        self.0.raw.as_ref()
    }
}

impl Ledger {
    /// Takes `bytes` out of the budget; the error is how many are left of it.
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

    /// Its failures on purpose.
    pub(super) fn faults(&self) -> &FaultCounter {
        &self.ledger.faults
    }

    /// A buffer of zeros, `bytes` rounded up to a multiple of 16 and at least 16. An upload buffer is mapped.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget, the adapter's limit or the driver has not that much, [`Error::Gpu`] if the device is
    /// lost.
    pub fn buffer(&self, purpose: Purpose, what: &'static str, bytes: u64, usage: Usage) -> Result<Buffer> {
        self.health.check()?;
        let size = bytes.max(1).checked_next_multiple_of(16).unwrap_or(u64::MAX);
        let kind = purpose.memory_kind();
        let refused = |available: u64| Error::Memory { kind, what, wanted: size, available };
        if size > self.max_buffer {
            return Err(refused(self.max_buffer));
        }
        self.ledger.reserve(purpose, size).map_err(refused)?;
        // From here on an error gives the bytes back.
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

    /// The driver's buffer of `size` bytes.
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
            error => self.health.failed(format_args!("a buffer for {what}"), &error),
        })
    }

    /// Bytes the driver's allocator holds, if it tells and they are to be held against the budget.
    fn reserved(&self) -> Option<u64> {
        let counts = (MEASURED_FROM..u64::MAX).contains(&self.budget());
        let device = self.device.as_ref().filter(|_| counts)?;
        device.generate_allocator_report().map(|report| report.total_reserved_bytes)
    }

    /// Changes the budget, which must not be below the bytes held.
    ///
    /// # Errors
    /// [`Error::Memory`] if more is held; the budget then stays.
    pub fn set_budget(&self, bytes: u64) -> Result<()> {
        let wanted = self.used();
        if wanted > bytes {
            return Err(Error::memory(ScarceMemory::Gpu, "VRAM budget", wanted, bytes));
        }
        self.ledger.budget.store(bytes, Relaxed);
        Ok(())
    }

    /// Most bytes that may be held.
    pub fn budget(&self) -> u64 {
        self.ledger.budget.load(Relaxed)
    }

    /// Bytes held.
    pub fn used(&self) -> u64 {
        self.ledger.total.load(Relaxed)
    }

    /// Bytes held for `purpose`.
    pub fn used_for(&self, purpose: Purpose) -> u64 {
        self.ledger.by_purpose[purpose as usize].load(Relaxed)
    }

    /// Bytes left of the budget.
    pub fn available(&self) -> u64 {
        self.budget().saturating_sub(self.used())
    }

    /// Buffers made so far.
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
            // Blocks cost something, but not most of the budget.
            assert!(gpu.arena().used() > budget / 2, "{} of {budget}", gpu.arena().used());
            held.clear();
            assert_eq!(gpu.arena().used_for(Purpose::Ffn), 0);
        }
    }
}
