//! The RAM of a plan: what it needs, what the machine has, and the reads from the disk if it does
//! not fit.

use serde::{Deserialize, Serialize};

use super::{CostProfile, Machine, Placement, Plan};

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
    /// Mean bytes that a token reads from the disk, if the weights that fit stay in RAM.
    pub disk_bytes: f64,
    /// Seconds of these reads. `None` if the disk's speed is unknown, or if not even the bytes
    /// besides weights fit.
    pub disk_seconds: Option<f64>,
}

impl RamShortage {
    /// The shortage of a plan that needs `need` and has `ram` bytes. The CPU reads `cpu_bytes` of
    /// weights for a token, and the disk `disk` bytes per second. `None` if everything fits.
    ///
    /// It assumes that a token reads missing and present weights equally often. The pager keeps
    /// frequent experts and neurons in RAM, so models with them read less.
    pub fn new(need: RamNeed, ram: u64, cpu_bytes: f64, disk: Option<f64>) -> Option<Self> {
        let missing = need.total().checked_sub(ram).filter(|missing| *missing > 0)?;
        let fraction = (missing as f64 / need.weights.max(1) as f64).min(1.0);
        let disk_bytes = cpu_bytes * fraction;
        let disk_seconds = disk.filter(|_| need.others <= ram).map(|rate| disk_bytes / rate);
        Some(RamShortage { ram, missing, disk_bytes, disk_seconds })
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
    pub fn shortage(self, on_device: u64, cpu_bytes: f64, disk: Option<f64>) -> Option<RamShortage> {
        let need = RamNeed { weights: self.weights.saturating_sub(on_device), others: 0 };
        RamShortage::new(need, self.ram, cpu_bytes, disk)
    }

    /// Seconds that the disk adds to each byte of weights that the CPU reads, if none of them are
    /// in GPU memory. 0 if the speed of the disk is unknown.
    pub fn seconds_per_byte(self, disk: Option<f64>) -> f64 {
        self.shortage(0, 1.0, disk).and_then(|shortage| shortage.disk_seconds).unwrap_or(0.0)
    }
}

impl CostProfile {
    /// Mean bytes of weights that the CPU reads for a token with `placement`.
    pub fn cpu_weight_bytes(&self, placement: &Placement) -> f64 {
        let layers = self.layers.iter().zip(&placement.hot).enumerate();
        let layers = layers.map(|(at, (layer, hot))| {
            layer.cpu_weight_bytes((at >= placement.first_resident).then(|| layer.rows_of(hot)))
        });
        layers.sum::<f64>() + if placement.head { 0.0 } else { self.head.reads.cpu as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{HeadCosts, ReadBytes, SkippedRows, machine::SharedMemory, tests::layer},
        *,
    };
    use thermocline_formats::quant::TensorType;

    const GIB: u64 = 1 << 30;

    #[test]
    fn missing_weights_are_read_from_the_disk_for_every_token() {
        let need = RamNeed { weights: 40 * GIB, others: 2 * GIB };
        let of = |ram: u64, disk| RamShortage::new(need, ram * GIB, 20e9, disk);
        assert_eq!(of(42, Some(2e9)), None);
        // A quarter of the weights is missing.
        let quarter = RamShortage { ram: 32 * GIB, missing: 10 * GIB, disk_bytes: 5e9, disk_seconds: Some(2.5) };
        assert_eq!(of(32, Some(2e9)), Some(quarter));
        assert_eq!(of(32, None), Some(RamShortage { disk_seconds: None, ..quarter }));
        let swapped = RamShortage { ram: GIB, missing: 41 * GIB, disk_bytes: 20e9, disk_seconds: None };
        assert_eq!(of(1, Some(2e9)), Some(swapped), "caches do not fit");
    }

    #[test]
    fn weights_in_gpu_memory_are_not_read_from_the_disk() {
        let limit = WeightLimit { weights: 40 * GIB, ram: 10 * GIB };
        let read = |on_device: u64| limit.shortage(on_device * GIB, 20e9, Some(2e9)).map(|it| it.disk_seconds.unwrap());
        assert_eq!([read(0), read(20), read(30)], [Some(7.5), Some(5.0), None]);
        assert_eq!((limit.seconds_per_byte(Some(1e9)), limit.seconds_per_byte(None)), (0.75e-9, 0.0));
        assert_eq!(WeightLimit { ram: 40 * GIB, ..limit }.seconds_per_byte(Some(1e9)), 0.0);
    }

    #[test]
    fn cpu_reads_cold_weights() {
        let head = HeadCosts {
            matrix: 500,
            vectors: 0,
            scratch: 0,
            reads: ReadBytes { ty: TensorType::Q4_0, cpu: 500, device: 600 },
        };
        // Half of the 64 neurons fire. The firing rows of all are read, and two more of the firing
        // ones.
        let one = || layer(64, 10, 1000, SkippedRows::Silent, |_| 0.5);
        let profile = CostProfile { layers: vec![one(), one()], head, scratch: 0, staging: 0, assumptions: Vec::new() };
        let whole = 1000.0 + 64.0 * 10.0 + 2.0 * 32.0 * 10.0;
        let cpu = Placement::cpu(2);
        assert_eq!(profile.cpu_weight_bytes(&cpu), 2.0 * whole + 500.0);
        assert_eq!(profile.cpu_weight_bytes(&Placement::all(&profile)), 0.0);
        let some =
            Placement { first_resident: 1, hot: vec![Vec::new(), profile.layers[1].order[..32].to_vec()], head: true };
        assert_eq!(profile.cpu_weight_bytes(&some), whole + 32.0 * 10.0 + 2.0 * 16.0 * 10.0);
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
