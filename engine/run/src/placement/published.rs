//! A machine described by published figures (bandwidths, bus and cores from data sheets), for plans
//! of machines that are not at hand. How much of these figures our kernels reach was measured (CPU)
//! or follows from compiled kernels (GPU). Each efficiency states its source.

use serde::{Deserialize, Serialize};

use super::{
    MemorySizes,
    machine::{CpuRates, GpuRates, Machine, ProductRate, SharedMemory, of_all_types},
};
use thermocline_base::error::{Error, Result};

/// Fraction of the RAM's published bandwidth that sequential reads reach. Two channels of DDR4 and
/// DDR5 give about 0.85 in `bench`'s read test, and dense products read at 92 % of that
/// (docs/benchmarks.md).
const RAM_IN_ORDER: f64 = 0.85 * 0.92;
/// Speed of scattered rows as a fraction of sequential reads: 13 of 21 GB/s for rows of 2.3 KB,
/// 15.6 for three adjacent rows.
const RAM_SCATTERED: f64 = 0.65;
/// Fraction of the VRAM's published bandwidth that products reach. Products at full bandwidth use
/// only 6 to 66 % of a card's instructions. The copy bandwidth is therefore the limit, about 0.9 of
/// the published bandwidth.
const VRAM_IN_ORDER: f64 = 0.82;
/// Speed of scattered rows as a fraction of sequential reads.
const VRAM_SCATTERED: f64 = 0.8;
/// Fraction of a bus's published one-way bandwidth that large copies reach.
const BUS: f64 = 0.8;
/// Seconds of a dispatch that waits for the previous dispatch.
const DISPATCH: f64 = 3e-6;
/// Seconds of a hand-over on a discrete card: 60 to 150 us with a Vulkan driver.
const HAND_OVER: f64 = 100e-6;
/// Multiply-adds per second and core of products with many tokens, by instruction set. Measured
/// with 2 threads and Q4_0.
const CPU_PROMPTS: [(&str, f64); 3] = [("avx512", 280e9), ("avx2", 90e9), ("neon", 60e9)];
/// Fraction of a card's published half-precision arithmetic that prompts reach without matrix
/// units.
const GPU_PROMPTS: f64 = 0.25;

/// Published figures of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedMachine {
    /// Name on the command line.
    pub name: String,
    /// Description of its parts in one line.
    pub about: String,
    /// The CPU with its memory.
    pub cpu: PublishedCpu,
    /// The GPU, if there is one.
    pub gpu: Option<PublishedGpu>,
    /// Sequential reads of the disk in 10^9 bytes per second, if published.
    #[serde(default)]
    pub disk_gb_s: Option<f64>,
}

/// Published figures of a CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedCpu {
    /// The CPU's name.
    pub name: String,
    /// Number of cores that compute: the performance cores, if there are two kinds.
    pub cores: usize,
    /// Best instruction set of its kernels: `avx2`, `avx512` or `neon`.
    pub kernels: String,
    /// Memory bandwidth in 10^9 bytes per second.
    pub memory_gb_s: f64,
    /// Memory size in 2^30 bytes.
    pub memory_gib: f64,
    /// Origin of the figures.
    pub source: String,
}

/// Published figures of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedGpu {
    /// The GPU's name.
    pub name: String,
    /// Memory size in 2^30 bytes. For a GPU that shares the CPU's memory, the size that it may use.
    pub memory_gib: f64,
    /// Memory bandwidth in 10^9 bytes per second.
    pub memory_gb_s: f64,
    /// One-way bandwidth of the bus in 10^9 bytes per second.
    pub bus_gb_s: f64,
    /// Half-precision operations per second without matrix units, in 10^12.
    pub half_tflops: f64,
    /// True if the GPU shares the CPU's memory.
    #[serde(default)]
    pub unified: bool,
    /// Origin of the figures.
    pub source: String,
}

impl PublishedMachine {
    /// Parses the machine in `text`, a JSON object. Errors call it `name`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `text` is not a machine or has impossible figures.
    pub fn from_json(name: &str, text: &str) -> Result<Self> {
        let refuse = |got: String| Error::invalid("published machine", format!("plausible figures of {name}"), got);
        let machine: PublishedMachine = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        let gpu = machine.gpu.iter().flat_map(|gpu| [gpu.memory_gib, gpu.memory_gb_s, gpu.bus_gb_s, gpu.half_tflops]);
        let mut figures = gpu.chain([machine.cpu.memory_gb_s, machine.cpu.memory_gib]).chain(machine.disk_gb_s);
        if let Some(wrong) = figures.find(|figure| !(0.1..1e5).contains(figure)) {
            return Err(refuse(wrong.to_string()));
        }
        if !CPU_PROMPTS.iter().any(|(kernels, _)| *kernels == machine.cpu.kernels) || machine.cpu.cores == 0 {
            return Err(refuse(format!("{} cores and the kernels `{}`", machine.cpu.cores, machine.cpu.kernels)));
        }
        Ok(machine)
    }

    /// Sizes of the machine's memory.
    fn memory(&self) -> MemorySizes {
        let bytes = |gib: f64| (gib * f64::from(1 << 30)) as u64;
        MemorySizes { ram: Some(bytes(self.cpu.memory_gib)), vram: self.gpu.as_ref().map(|gpu| bytes(gpu.memory_gib)) }
    }

    /// Speeds and sizes for planning.
    pub fn machine(&self) -> Machine {
        let ram = self.cpu.memory_gb_s * 1e9 * RAM_IN_ORDER;
        let known = CPU_PROMPTS.iter().find(|(kernels, _)| *kernels == self.cpu.kernels);
        let prompts = self.cpu.cores as f64 * known.map_or(CPU_PROMPTS[1].1, |(_, each)| *each);
        let cpu = CpuRates {
            name: self.cpu.name.clone(),
            kernels: self.cpu.kernels.clone(),
            threads: self.cpu.cores,
            memory: self.cpu.memory_gb_s * 1e9,
            join: 5e-6,
            rates: of_all_types(ProductRate { sequential: ram, scattered: ram * RAM_SCATTERED }),
            prompts: of_all_types(prompts),
        };
        let gpu = self.gpu.as_ref().map(|gpu| {
            let vram = gpu.memory_gb_s * 1e9 * VRAM_IN_ORDER;
            let bus = gpu.bus_gb_s * 1e9 * BUS;
            GpuRates {
                adapter: gpu.name.clone(),
                driver: String::new(),
                memory: gpu.memory_gb_s * 1e9,
                dispatch: DISPATCH,
                hand_over: if gpu.unified { HAND_OVER / 2.0 } else { HAND_OVER },
                upload: bus,
                download: bus,
                rates: of_all_types(ProductRate { sequential: vram, scattered: vram * VRAM_SCATTERED }),
                // No data sheet states how far clocks sink between short submissions.
                bursts: of_all_types(1.0),
                // A multiply-add is two operations.
                prompts: of_all_types(gpu.half_tflops * 1e12 / 2.0 * GPU_PROMPTS),
                streams: of_all_types(bus.min(ram)),
                // With one shared memory, each processor gets half of its bandwidth while both
                // read.
                together: gpu.unified.then_some(SharedMemory { cpu: 0.5, gpu: 0.5 }),
                limits: Machine::typical_limits(),
            }
        });
        let mut machine = Machine::new(cpu, gpu);
        machine.assumed = true;
        (machine.memory, machine.disk) = (self.memory(), self.disk_gb_s.map(|rate| rate * 1e9));
        machine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_formats::quant::TensorType;

    const TEXT: &str = r#"{"name": "a", "about": "b",
        "cpu": {"name": "c", "cores": 8, "kernels": "avx2", "memory_gb_s": 50, "memory_gib": 64, "source": "s"},
        "gpu": {"name": "g", "memory_gib": 24, "memory_gb_s": 1000, "bus_gb_s": 32, "half_tflops": 80, "source": "s"}}"#;

    #[test]
    fn published_figures_become_speeds_of_every_weight_type() {
        let published = PublishedMachine::from_json("a", TEXT).unwrap();
        let machine = published.machine();
        assert_eq!(machine.memory, MemorySizes { ram: Some(64 << 30), vram: Some(24 << 30) });
        assert_eq!(machine.disk, None);
        let with_disk = TEXT.replacen('{', "{\"disk_gb_s\": 3.5, ", 1);
        assert_eq!(PublishedMachine::from_json("a", &with_disk).unwrap().machine().disk, Some(3.5e9));
        assert!(machine.assumed && machine.knows(&[TensorType::Q4_0, TensorType::MXFP4, TensorType::F16]));
        let gpu = machine.gpu.unwrap();
        assert!(gpu.rate(TensorType::Q4_K).sequential > 15.0 * machine.cpu.rate(TensorType::Q4_K).sequential);
        assert!(gpu.together.is_none() && gpu.bursts["Q4_K"] == 1.0);
    }

    #[test]
    fn impossible_figures_are_refused() {
        for (from, to) in
            [("\"cores\": 8", "\"cores\": 0"), ("1000", "-3"), ("avx2", "mmx"), ("\"about\"", "\"abuot\"")]
        {
            let error = PublishedMachine::from_json("a", &TEXT.replace(from, to)).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
    }
}
