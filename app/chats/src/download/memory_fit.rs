//! Whether a model's files fit into the memory of a computer, computed before a download.

/// Memory needed by the system and other programs, in bytes.
const OTHERS: f64 = 2e9;

/// Memory for KV cache and buffers, as a fraction of the file size.
const BESIDE: f64 = 0.15;

/// Fraction of the VRAM that adds to RAM. Hot weights in VRAM stay mapped from the file, but need
/// not stay in RAM.
const OF_VRAM: f64 = 0.8;

/// Memory of a GPU. The default means no GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuMemory {
    /// Memory that the GPU may use, in bytes.
    pub bytes: u64,
    /// True if the GPU shares RAM, as on Apple machines, so that it adds no memory.
    pub shared: bool,
}

/// The memory that a model fits into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFit {
    /// The whole model fits into GPU memory.
    Gpu,
    /// The model fits into RAM, or into RAM and VRAM together.
    Memory,
    /// The model does not fit, and would be read from disk all the time.
    TooLarge,
}

impl MemoryFit {
    /// The fit of a model of `bytes` bytes on a computer with `ram` bytes of RAM and this GPU.
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

    /// The fit in words.
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
        // If the system lets the GPU use all of RAM, other programs still need some.
        assert_eq!(fit(13.0, 16, 16), MemoryFit::TooLarge);
    }
}
