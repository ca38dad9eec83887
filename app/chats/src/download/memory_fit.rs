//! Fit of a model's files in the memory of a computer, before they are downloaded.

/// Memory that the system and other programs need, in bytes.
const OTHERS: f64 = 2e9;

/// Memory a model takes beside its file, as a fraction of that: cache and buffers.
const BESIDE: f64 = 0.15;

/// Fraction of the VRAM that a model may take beside RAM: hot weights in VRAM stay mapped in RAM as well, but need not stay in
/// its cache.
const OF_VRAM: f64 = 0.8;

/// Memory of a GPU; the default is that of none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuMemory {
    /// All that the GPU may use, in bytes.
    pub bytes: u64,
    /// True if it is a part of RAM, as on Apple's machines: it has no room beside RAM.
    pub shared: bool,
}

/// Place that has room for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFit {
    /// The memory of the GPU has room for all of it.
    Gpu,
    /// RAM, with that of a graphics card, has room for it.
    Memory,
    /// None: it would be read from disk all the time.
    TooLarge,
}

impl MemoryFit {
    /// The fit of a model of so many `bytes` on a computer with so many bytes of RAM, and this GPU.
    pub fn of(bytes: f64, ram: u64, gpu: GpuMemory) -> Self {
        let needed = bytes * (1.0 + BESIDE);
        let beside = if gpu.shared { 0.0 } else { gpu.bytes as f64 * OF_VRAM };
        let in_memory = needed + OTHERS <= ram as f64 + beside;
        if needed <= gpu.bytes as f64 && (in_memory || !gpu.shared) {
            MemoryFit::Gpu
        } else if in_memory {
            MemoryFit::Memory
        } else {
            MemoryFit::TooLarge
        }
    }

    /// It in words.
    pub fn words(self) -> &'static str {
        match self {
            MemoryFit::Gpu => "fits into GPU memory",
            MemoryFit::Memory => "fits into memory",
            MemoryFit::TooLarge => "larger than this computer's memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn fit_leaves_room_for_the_cache_and_for_other_programs() {
        let fit = |gigabytes: f64, ram: u64, vram: u64| {
            MemoryFit::of(gigabytes * 1e9, ram * GB, GpuMemory { bytes: vram * GB, shared: false })
        };
        assert_eq!(fit(6.0, 16, 8), MemoryFit::Gpu);
        assert_eq!(fit(7.5, 16, 8), MemoryFit::Memory, "no room for its cache");
        assert_eq!(fit(12.0, 16, 0), MemoryFit::Memory);
        assert_eq!(fit(13.0, 16, 0), MemoryFit::TooLarge);
        assert_eq!(fit(0.5, 0, 0), MemoryFit::TooLarge);
    }

    #[test]
    fn memory_that_a_gpu_shares_is_counted_once() {
        let fit = |gigabytes: f64, ram: u64, bytes: u64| {
            MemoryFit::of(gigabytes * 1e9, ram * GB, GpuMemory { bytes: bytes * GB, shared: true })
        };
        assert_eq!(fit(6.0, 16, 11), MemoryFit::Gpu);
        assert_eq!(fit(12.0, 16, 11), MemoryFit::Memory);
        assert_eq!(fit(13.0, 16, 11), MemoryFit::TooLarge, "a card of this size would have room for the rest");
        // A system that lets the GPU have all of RAM: other programs need some.
        assert_eq!(fit(13.0, 16, 16), MemoryFit::TooLarge);
    }
}
