//! The RAM of a plan: what it needs, what the machine has, and the reads from the disk if it does
//! not fit.

use serde::{Deserialize, Serialize};

use super::{CpuReads, DiskSeconds, Machine, Plan};

/// Sizes of a machine's memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySizes {
    /// RAM, if known.
    pub ram: Option<u64>,
    /// The GPU's memory, if known. A GPU that shares the CPU's memory has a part of `ram`.
    pub vram: Option<u64>,
}

/// Bytes that a plan needs in RAM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RamNeed {
    /// Weights of the model's file that are not in GPU memory. They can be read from the disk
    /// again.
    pub weights: u64,
    /// Everything that cannot be read from the disk again: caches, scratch memory, copies of
    /// weights, and the bytes of a GPU that shares the RAM.
    pub others: u64,
}

impl RamNeed {
    /// The bytes of `plan` on `machine`, for a model with a file of `file` bytes. `others` are the
    /// bytes besides weights and the GPU's.
    pub fn of(plan: &Plan, machine: &Machine, file: u64, others: u64) -> Self {
        let is_shared = machine.gpu.as_ref().is_some_and(|gpu| gpu.together.is_some());
        RamNeed {
            weights: file.saturating_sub(plan.bytes.weights()),
            others: others.saturating_add(if is_shared { plan.bytes.total() } else { 0 }),
        }
    }

    /// Sum of both.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.others)
    }
}

/// Decoding by a plan that does not fit into RAM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RamShortage {
    /// Bytes of RAM that the plan has.
    pub ram: u64,
    /// Bytes that do not fit.
    pub missing: u64,
    /// Mean bytes that a token reads from the disk, if the weights that the pager prefers stay in
    /// RAM.
    pub disk_bytes: f64,
    /// Seconds of these reads. `None` if the disk's speed is unknown, or if not even the bytes
    /// besides weights fit.
    pub disk: Option<DiskSeconds>,
}

impl RamShortage {
    /// The shortage of a plan that needs `need` and has `ram` bytes. The CPU reads `reads` for a
    /// token, and the disk `disk` bytes per second. `None` if everything fits.
    pub fn new(need: RamNeed, ram: u64, reads: &CpuReads, disk: Option<f64>) -> Option<Self> {
        let missing = need.total().checked_sub(ram).filter(|missing| *missing > 0)?;
        let from_disk = reads.from_disk(ram.saturating_sub(need.others) as f64);
        let disk = disk.filter(|_| need.others <= ram).map(|rate| from_disk.seconds(rate));
        Some(RamShortage { ram, missing, disk_bytes: from_disk.bytes(), disk })
    }

    /// Seconds of a token that takes `computing` seconds if all weights are in RAM. `None` if they
    /// cannot be predicted.
    pub fn token_seconds(&self, computing: f64) -> Option<f64> {
        self.disk.map(|disk| disk.of_token(computing))
    }
}

/// The RAM for the weights of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightLimit {
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of RAM for the weights that are not in GPU memory.
    pub ram: u64,
}

impl WeightLimit {
    /// The shortage with `on_device` bytes of the weights in GPU memory. The other arguments are
    /// those of [`RamShortage::new`].
    pub fn shortage(self, on_device: u64, reads: &CpuReads, disk: Option<f64>) -> Option<RamShortage> {
        let need = RamNeed { weights: self.weights.saturating_sub(on_device), others: 0 };
        RamShortage::new(need, self.ram, reads, disk)
    }

    /// Seconds that the disk adds to each byte of weights that the CPU reads, if none of them are
    /// in GPU memory. 0 if the speed of the disk is unknown.
    pub fn seconds_per_byte(self, disk: Option<f64>) -> f64 {
        let missing = self.weights.saturating_sub(self.ram) as f64 / self.weights.max(1) as f64;
        disk.map_or(0.0, |rate| missing / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{CostProfile, HeadCosts, Placement, ReadBytes, SkippedRows, machine::SharedMemory, tests::layer},
        *,
    };
    use thermocline_formats::quant::TensorType;

    const GIB: u64 = 1 << 30;

    /// The reads of a dense model of `weights` bytes.
    fn dense(weights: u64) -> CpuReads {
        let layers = (0..16).map(|_| layer(0, 0, weights / 16, SkippedRows::Nothing, |_| 0.0)).collect();
        let reads = ReadBytes { ty: TensorType::Q4_0, cpu: 0, device: 0 };
        let head = HeadCosts { matrix: 0, vectors: 0, scratch: 0, reads };
        let profile = CostProfile { layers, head, scratch: 0, staging: 0, assumptions: Vec::new() };
        profile.cpu_reads(&Placement::cpu(16))
    }

    #[test]
    fn missing_weights_are_read_from_the_disk_for_every_token() {
        let need = RamNeed { weights: 40 * GIB, others: 2 * GIB };
        let of = |ram: u64, disk| RamShortage::new(need, ram * GIB, &dense(40 * GIB), disk);
        assert_eq!(of(42, Some(2e9)), None);
        // A quarter of the weights is missing, and half a layer for the window.
        let quarter = of(32, Some(2e9)).unwrap();
        assert_eq!((quarter.ram, quarter.missing, quarter.disk_bytes / GIB as f64), (32 * GIB, 10 * GIB, 11.25));
        let seconds = quarter.disk_bytes / 2e9;
        assert_eq!([1.0, 9.0].map(|computing| quarter.token_seconds(computing)), [Some(seconds), Some(9.0)]);
        assert_eq!(of(32, None), Some(RamShortage { disk: None, ..quarter }));
        let swapped = of(1, Some(2e9)).unwrap();
        assert!(swapped.missing == 41 * GIB && swapped.token_seconds(1.0).is_none(), "caches do not fit");
    }

    #[test]
    fn weights_in_gpu_memory_are_not_read_from_the_disk() {
        let limit = WeightLimit { weights: 40 * GIB, ram: 10 * GIB };
        let read = |on_device: u64| {
            let shortage = limit.shortage(on_device * GIB, &dense((40 - on_device) * GIB), Some(2e9));
            shortage.map(|it| it.disk_bytes / GIB as f64)
        };
        assert_eq!([read(0), read(20), read(30)], [Some(32.5), Some(11.25), None]);
        assert_eq!((limit.seconds_per_byte(Some(1e9)), limit.seconds_per_byte(None)), (0.75e-9, 0.0));
        assert_eq!(WeightLimit { ram: 40 * GIB, ..limit }.seconds_per_byte(Some(1e9)), 0.0);
    }

    #[test]
    fn unified_memory_is_one_budget() {
        let mut machine = Machine::typical();
        let profile = CostProfile {
            layers: vec![layer(64, 10, 1000, SkippedRows::Silent, |_| 0.5)],
            head: HeadCosts {
                matrix: 0,
                vectors: 0,
                scratch: 0,
                reads: ReadBytes { ty: TensorType::Q4_0, cpu: 0, device: 0 },
            },
            scratch: 50,
            staging: 7,
            assumptions: Vec::new(),
        };
        let plan = Plan::new(&profile, &machine, Placement::all(&profile));
        let weights = 10_000 - plan.bytes.weights();
        assert_eq!(RamNeed::of(&plan, &machine, 10_000, 5), RamNeed { weights, others: 5 });
        machine.gpu.as_mut().unwrap().together = Some(SharedMemory { cpu: 0.5, gpu: 0.5 });
        assert_eq!(RamNeed::of(&plan, &machine, 10_000, 5), RamNeed { weights, others: 5 + plan.bytes.total() });
    }
}
