//! Effort of measuring a machine.

use super::{cpu_products::MATRICES, gpu::GpuEffort, memory::last_cache_bytes};

/// Bytes of a matrix on the CPU if the last cache is smaller.
const USUAL_BYTES: usize = 128 << 20;
/// Most bytes of a cache to exceed. Some servers report the caches of all their processors.
const LARGEST_CACHE: usize = 256 << 20;
/// Fewest bytes to which [`MeasureEffort::within`] reduces a matrix.
const LEAST_BYTES: usize = 32 << 20;
/// All matrices together take at most one part in this many of the free RAM.
const FREE_PARTS: u64 = 8;

/// Effort of measuring a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasureEffort {
    /// Bytes of a matrix on the CPU, at least the size of its last cache.
    pub cpu_bytes: usize,
    /// Effort of measuring the GPU.
    pub gpu: GpuEffort,
    /// Measurements of each kind on the CPU, or more if they disagree.
    pub rounds: usize,
}

impl Default for MeasureEffort {
    /// Takes a second or two for a model of usual weight types.
    fn default() -> Self {
        let gpu = GpuEffort { bytes: 128 << 20, seconds: 0.01, hand_overs: 60 };
        let cpu_bytes = last_cache_bytes().unwrap_or(0).clamp(USUAL_BYTES, LARGEST_CACHE);
        MeasureEffort { cpu_bytes, gpu, rounds: 10 }
    }
}

impl MeasureEffort {
    /// Reduces the matrices on the CPU if they take more than an eighth of the `free` bytes of RAM.
    /// `None`: the free RAM is unknown, and nothing is reduced.
    pub fn within(self, free: Option<u64>) -> Self {
        let bytes = |free: u64| usize::try_from(free / (FREE_PARTS * MATRICES as u64)).unwrap_or(usize::MAX);
        let most = free.map_or(usize::MAX, |free| bytes(free).max(LEAST_BYTES));
        MeasureEffort { cpu_bytes: self.cpu_bytes.min(most), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_take_an_eighth_of_the_free_ram_at_most() {
        let effort = MeasureEffort { cpu_bytes: 256 << 20, ..MeasureEffort::default() };
        let of = |free: Option<u64>| effort.within(free).cpu_bytes;
        assert_eq!([of(None), of(Some(u64::MAX)), of(Some(6 << 30))], [256 << 20; 3]);
        assert_eq!([of(Some(3 << 30)), of(Some(1 << 20)), of(Some(0))], [128 << 20, LEAST_BYTES, LEAST_BYTES]);
        let little = MeasureEffort { cpu_bytes: 1 << 20, ..effort };
        assert_eq!(little.within(Some(0)), little);
        assert!((USUAL_BYTES..=LARGEST_CACHE).contains(&MeasureEffort::default().cpu_bytes));
    }
}
