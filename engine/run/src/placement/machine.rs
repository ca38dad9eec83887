//! The speeds of a machine, with which plans are priced. `calibration` measures them and stores
//! them as JSON.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::MemorySizes;
use thermocline_base::{
    error::{Error, FileAction, Location, Result},
    files::keep_json,
};
use thermocline_formats::quant::TensorType;

/// Version of the files, increased when a measurement changes its meaning.
const VERSION: u32 = 4;

/// Speeds of the CPU, of one GPU, and of the transfers between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    version: u32,
    /// The CPU with its memory.
    pub cpu: CpuRates,
    /// The GPU, or `None` if there is only the CPU.
    pub gpu: Option<GpuRates>,
    /// True if the speeds are not measured, but published or typical figures.
    #[serde(default)]
    pub assumed: bool,
    /// Sizes of the memory. Files of older versions have none.
    #[serde(default)]
    pub memory: MemorySizes,
    /// Bytes per second of large reads from the disk that holds the models, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<f64>,
}

/// Bytes per second of products with weights of one type, one token at a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductRate {
    /// All rows, in order.
    pub sequential: f64,
    /// A few scattered rows.
    pub scattered: f64,
}

/// Decoding rates by the name of the weight type in the file. Bytes refer to the processor's own
/// encoding.
pub type Rates = BTreeMap<String, ProductRate>;

/// Rates of prompts by the name of the weight type in the file.
pub type PromptRates = BTreeMap<String, f64>;

/// Fractions of the decoding rates that remain in bursts, from 0 to 1, by the name of the weight
/// type in the file.
pub type BurstFractions = BTreeMap<String, f64>;

/// The clocks of a device while it computes. A driver lowers the clocks of a waiting device and
/// does not raise them again for a short submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceClocks {
    /// The clocks during work without waits.
    Sustained,
    /// The clocks during bursts: short submissions with waits between them.
    Sunken,
}

impl DeviceClocks {
    /// The clocks of a device that has just waited (`waited`) or has not.
    pub const fn after_wait(waited: bool) -> Self {
        if waited { DeviceClocks::Sunken } else { DeviceClocks::Sustained }
    }
}

/// Speeds of the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuRates {
    /// The CPU's name, if known.
    pub name: String,
    /// Instruction set of its kernels.
    pub kernels: String,
    /// Number of worker threads.
    pub threads: usize,
    /// Bytes per second of sequential reads from the CPU's memory.
    pub memory: f64,
    /// Seconds to start all workers and wait for them.
    pub join: f64,
    /// Decoding rates by weight type.
    pub rates: Rates,
    /// Multiply-adds per second of products with many tokens in an FFN of which some neurons are
    /// computed.
    pub prompts: PromptRates,
}

/// Speeds of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRates {
    /// The GPU's name.
    pub adapter: String,
    /// The driver's name and version.
    pub driver: String,
    /// Bytes per second of a kernel that reads the GPU's memory.
    pub memory: f64,
    /// Seconds of a minimal dispatch that waits for the previous dispatch.
    pub dispatch: f64,
    /// Seconds from a submission until small results have been read back.
    pub hand_over: f64,
    /// Bytes per second of uploads to the device.
    pub upload: f64,
    /// Bytes per second of downloads from the device.
    pub download: f64,
    /// Decoding rates by weight type, during work without waits.
    pub rates: Rates,
    /// Fractions of these rates that remain in bursts; 1 for a card that does not lower its clocks.
    pub bursts: BurstFractions,
    /// Multiply-adds per second of products with many tokens.
    pub prompts: PromptRates,
    /// Bytes per second (in the file's encoding) of repacking and uploading rows.
    pub streams: PromptRates,
    /// Rates while both processors work on one shared memory. `None` if the rates do not change.
    pub together: Option<SharedMemory>,
    /// The limits that decide how much memory a model takes.
    pub limits: Limits,
}

/// Fractions of the rates that remain while both processors read one shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedMemory {
    /// Remaining fraction of the CPU's rates.
    pub cpu: f64,
    /// Remaining fraction of the GPU's rates.
    pub gpu: f64,
}

/// Limits of an adapter, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Largest size of a buffer.
    pub max_buffer: u64,
    /// Largest size of a binding.
    pub max_binding: u64,
    /// Alignment of bindings.
    pub binding_alignment: u64,
}

impl CpuRates {
    /// The rate of weights of type `ty`.
    pub fn rate(&self, ty: TensorType) -> ProductRate {
        rate(&self.rates, ty, self.memory)
    }
}

impl GpuRates {
    /// The rate of weights of type `ty` during work without waits.
    pub fn rate(&self, ty: TensorType) -> ProductRate {
        rate(&self.rates, ty, self.memory)
    }

    /// The rate of weights of type `ty` at these clocks.
    pub fn rate_at(&self, clocks: DeviceClocks, ty: TensorType) -> ProductRate {
        let ProductRate { sequential, scattered } = self.rate(ty);
        match clocks {
            DeviceClocks::Sustained => ProductRate { sequential, scattered },
            DeviceClocks::Sunken => {
                let remains = self.burst_fraction(ty);
                ProductRate { sequential: sequential * remains, scattered: scattered * remains }
            }
        }
    }

    /// The fraction of the rate of type `ty` that remains in bursts. A type that was not measured
    /// gets the smallest measured fraction.
    fn burst_fraction(&self, ty: TensorType) -> f64 {
        let least = || self.bursts.values().copied().fold(1.0, f64::min);
        self.bursts.get(ty.name()).copied().unwrap_or_else(least)
    }
}

/// Maps every weight type to `value`.
pub(super) fn of_all_types<T: Copy>(value: T) -> BTreeMap<String, T> {
    let weights = TensorType::ALL.into_iter().filter(|ty| ty.is_weight());
    weights.map(|ty| (ty.name().to_owned(), value)).collect()
}

/// The rate of a type. A type that was not measured gets the rate of the slowest measured type.
fn rate(rates: &Rates, ty: TensorType, memory: f64) -> ProductRate {
    rates.get(ty.name()).copied().unwrap_or_else(|| {
        let slowest = rates.values().copied().reduce(|a, b| ProductRate {
            sequential: a.sequential.min(b.sequential),
            scattered: a.scattered.min(b.scattered),
        });
        slowest.unwrap_or(ProductRate { sequential: memory * 0.7, scattered: memory * 0.5 })
    })
}

impl Machine {
    /// Makes a machine with these speeds, rounded to four digits. No measurement is more precise,
    /// and rounded numbers are equal after writing and reading.
    pub fn new(mut cpu: CpuRates, mut gpu: Option<GpuRates>) -> Self {
        let round = |figure: &mut f64| *figure = format!("{figure:.3e}").parse().unwrap_or(*figure);
        let all = |rates: &mut Rates| {
            rates.values_mut().flat_map(|rate| [&mut rate.sequential, &mut rate.scattered]).for_each(round);
        };
        [&mut cpu.memory, &mut cpu.join].into_iter().for_each(round);
        cpu.prompts.values_mut().for_each(round);
        all(&mut cpu.rates);
        if let Some(gpu) = &mut gpu {
            let figures = [&mut gpu.memory, &mut gpu.dispatch, &mut gpu.hand_over, &mut gpu.upload, &mut gpu.download];
            figures.into_iter().for_each(round);
            gpu.together.iter_mut().flat_map(|it| [&mut it.cpu, &mut it.gpu]).for_each(round);
            let by_type = gpu.prompts.values_mut().chain(gpu.streams.values_mut()).chain(gpu.bursts.values_mut());
            by_type.for_each(round);
            all(&mut gpu.rates);
        }
        Machine { version: VERSION, cpu, gpu, assumed: false, memory: MemorySizes::default(), disk: None }
    }

    /// Sets the bytes per second of large reads from the disk, rounded like the other speeds.
    pub fn with_disk(self, disk: Option<f64>) -> Self {
        Machine { disk: disk.map(|rate| format!("{rate:.3e}").parse().unwrap_or(rate)), ..self }
    }

    /// The same machine with a CPU that takes `seconds` longer for each byte of weights of the
    /// types `types`.
    pub(super) fn slower_by(&self, types: &[TensorType], seconds: f64) -> Self {
        let mut slower = self.clone();
        let with = |rate: f64| 1.0 / (1.0 / rate + seconds);
        for ty in types {
            let ProductRate { sequential, scattered } = self.cpu.rate(*ty);
            let rate = ProductRate { sequential: with(sequential), scattered: with(scattered) };
            slower.cpu.rates.insert(ty.name().to_owned(), rate);
        }
        slower
    }

    /// A typical desktop: two channels of DDR4, and a mid-range graphics card. Used if nothing can
    /// be measured.
    pub fn typical() -> Self {
        let rates = |memory: f64, scattered: f64| {
            of_all_types(ProductRate { sequential: memory, scattered: memory * scattered })
        };
        Machine {
            version: VERSION,
            cpu: CpuRates {
                name: "a desktop's".to_owned(),
                kernels: "avx2".to_owned(),
                threads: 8,
                memory: 40e9,
                join: 5e-6,
                rates: rates(36e9, 0.7),
                prompts: of_all_types(200e9),
            },
            gpu: Some(GpuRates {
                adapter: "a mid-range GPU".to_owned(),
                driver: String::new(),
                memory: 300e9,
                dispatch: 3e-6,
                hand_over: 60e-6,
                upload: 10e9,
                download: 10e9,
                rates: rates(240e9, 0.8),
                bursts: of_all_types(1.0),
                prompts: of_all_types(3e12),
                streams: of_all_types(5e9),
                together: None,
                limits: Self::typical_limits(),
            }),
            assumed: true,
            memory: MemorySizes::default(),
            disk: None,
        }
    }

    /// Limits of a typical adapter, for planning without an adapter.
    pub const fn typical_limits() -> Limits {
        Limits { max_buffer: 1 << 32, max_binding: (1 << 31) - 4, binding_alignment: 256 }
    }

    /// True if all `types` were measured on every processor of the machine.
    pub fn knows(&self, types: &[TensorType]) -> bool {
        let rates = [Some(&self.cpu.rates), self.gpu.as_ref().map(|gpu| &gpu.rates)];
        let gpu = self.gpu.iter().flat_map(|gpu| [&gpu.bursts, &gpu.prompts, &gpu.streams]);
        let mut figures = gpu.chain([&self.cpu.prompts]);
        rates.into_iter().flatten().all(|rates| types.iter().all(|ty| rates.contains_key(ty.name())))
            && figures.all(|figures| types.iter().all(|ty| figures.contains_key(ty.name())))
    }

    /// Reads a file written by [`Machine::store`].
    ///
    /// # Errors
    /// [`Error::Io`] if there is no such file. [`Error::Malformed`] if the file has another format
    /// or version, or numbers that cannot be speeds.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read(path).map_err(|error| Error::io(FileAction::Read, path, error))?;
        let refuse = |location, expected: &str, got: String| Error::malformed(path, location, expected, got);
        let version = Location::Key("version".to_owned());
        let value: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|error| refuse(Location::File, "the speeds of a machine as JSON", error.to_string()))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(VERSION) => {}
            found => {
                let got = found.map_or_else(|| "no version".to_owned(), |found| found.to_string());
                return Err(refuse(version, &VERSION.to_string(), got));
            }
        }
        let machine: Machine = serde_json::from_value(value)
            .map_err(|error| refuse(Location::File, "the speeds of a machine", error.to_string()))?;
        match machine.first_impossible() {
            Some((key, got)) => Err(refuse(Location::Key(key), "a plausible figure", got)),
            None => Ok(machine),
        }
    }

    /// Writes the speeds as JSON, atomically.
    ///
    /// # Errors
    /// As [`thermocline_base::files::write`].
    pub fn store(&self, path: &Path) -> Result<()> {
        keep_json(path, self)
    }

    /// The file in `folder` that stores the speeds of these processors.
    pub fn file(folder: &Path, cpu: &str, gpu: Option<(&str, &str)>) -> PathBuf {
        let (adapter, driver) = gpu.unwrap_or_default();
        let name = [cpu, adapter, driver].join("\n");
        // FNV-1a gives a short name that is equal in every version of this program.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        folder.join(format!("machine-{hash:016x}.json"))
    }

    /// Key and value of the first number that is impossible for a machine.
    fn first_impossible(&self) -> Option<(String, String)> {
        // From a floppy disk to a petabyte per second, and from zero to a minute.
        let (speeds, times, fractions) = (&(1e3..=1e15), &(0.0..=60.0), &(0.01..=1.0));
        let cpu = &self.cpu;
        let mut figures = vec![("cpu.memory", cpu.memory, speeds), ("cpu.join", cpu.join, times)];
        figures.extend(self.disk.map(|disk| ("disk", disk, speeds)));
        let (mut rates, mut others) = (vec![("cpu.rates", &cpu.rates)], vec![("cpu.prompts", &cpu.prompts, speeds)]);
        if let Some(gpu) = &self.gpu {
            figures.extend([
                ("gpu.memory", gpu.memory, speeds),
                ("gpu.dispatch", gpu.dispatch, times),
                ("gpu.hand_over", gpu.hand_over, times),
                ("gpu.upload", gpu.upload, speeds),
                ("gpu.download", gpu.download, speeds),
            ]);
            let together = gpu.together.iter().flat_map(|it| [it.cpu, it.gpu]);
            figures.extend(together.map(|part| ("gpu.together", part, fractions)));
            rates.push(("gpu.rates", &gpu.rates));
            others.push(("gpu.bursts", &gpu.bursts, fractions));
            others.extend([("gpu.prompts", &gpu.prompts, speeds), ("gpu.streams", &gpu.streams, speeds)]);
        }
        let rates = rates.into_iter().flat_map(|(of, rates)| {
            let both = rates.iter().flat_map(|(ty, rate)| [(ty, rate.sequential), (ty, rate.scattered)]);
            both.map(move |(ty, figure)| (of, ty, figure, speeds))
        });
        let others = others
            .into_iter()
            .flat_map(|(of, figures, range)| figures.iter().map(move |(ty, figure)| (of, ty, *figure, range)));
        let by_type = rates
            .chain(others)
            .map(|(of, ty, figure, range)| (format!("{of}.{ty}"), ty.parse::<TensorType>().is_ok(), figure, range));
        let figures = figures.into_iter().map(|(key, figure, range)| (key.to_owned(), true, figure, range));
        let wrong = figures.chain(by_type).find(|(_, known, figure, range)| !known || !range.contains(figure));
        if let Some((key, known, figure, _)) = wrong {
            return Some((key, if known { figure.to_string() } else { "an unknown weight type".to_owned() }));
        }
        let limits = self.gpu.as_ref()?.limits;
        let possible =
            limits.max_buffer.min(limits.max_binding) >= 1 << 16 && (1..=1 << 16).contains(&limits.binding_alignment);
        (!possible).then(|| ("gpu.limits".to_owned(), format!("{limits:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_speeds_load_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = Machine::file(&folder.path().join("deeper"), "cpu", Some(("card", "1.2")));
        let mut machine = Machine::typical();
        if let Some(gpu) = &mut machine.gpu {
            gpu.together = Some(SharedMemory { cpu: 0.5, gpu: 0.75 });
            gpu.bursts.insert("Q4_0".to_owned(), 0.334);
        }
        machine.memory = MemorySizes { ram: Some(24 << 30), vram: Some(8 << 30) };
        machine.disk = Some(3.5e9);
        machine.store(&path).unwrap();
        assert_eq!(Machine::load(&path).unwrap(), machine);
        machine.gpu = None;
        machine.store(&path).unwrap();
        assert_eq!(Machine::load(&path).unwrap(), machine);
        assert_ne!(path, Machine::file(&folder.path().join("deeper"), "cpu", Some(("card", "1.3"))));
    }

    #[test]
    fn file_without_sizes_loads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.json");
        let mut machine = Machine::typical();
        machine.memory.ram = Some(24 << 30);
        machine.store(&path).unwrap();
        let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(file["memory"]["ram"], 24_u64 << 30, "{file}");
        file.as_object_mut().unwrap().remove("memory");
        fs::write(&path, file.to_string()).unwrap();
        assert_eq!(Machine::load(&path).unwrap(), Machine::typical());
    }

    #[test]
    fn speeds_that_no_machine_can_have_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.json");
        assert!(matches!(Machine::load(&path), Err(Error::Io { .. })));
        Machine::typical().store(&path).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        for (from, to, key) in [
            // A file version from before bursts were measured.
            ("\"version\": 4", "\"version\": 3", "version"),
            ("\"version\": 4,", "", "version"),
            ("40000000000.0", "0.0", "cpu.memory"),
            ("40000000000.0", "1e400", "JSON"),
            ("40000000000.0", "\"fast\"", "speeds"),
            ("\"Q4_0\"", "\"Q4_9\"", "Q4_9"),
            ("200000000000.0", "-1.0", "cpu.prompts"),
            ("3000000000000.0", "0.0", "gpu.prompts"),
            (": 1.0", ": 1.01", "gpu.bursts"),
            (": 1.0", ": 0.0", "gpu.bursts"),
            ("\"bursts\"", "\"burst\"", "burst"),
            ("5000000000.0", "null", "speeds"),
            ("\"hand_over\": ", "\"hand_over\": -", "gpu.hand_over"),
            ("\"binding_alignment\": 256", "\"binding_alignment\": 0", "gpu.limits"),
            ("\"threads\"", "\"treads\"", "treads"),
            ("\"ram\": null", "\"ram\": -1", "speeds"),
            ("\"memory\": {", "\"disk\": 0, \"memory\": {", "disk"),
            ("{", "", "JSON"),
        ] {
            assert!(good.contains(from), "{from} in {good}");
            fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let error = Machine::load(&path).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }) && error.to_string().contains(key), "{from}: {error}");
        }
    }

    #[test]
    fn rate_of_an_unmeasured_type_is_that_of_the_slowest() {
        let mut machine = Machine::typical();
        machine.cpu.rates.remove("Q4_0");
        machine.cpu.rates.insert("Q6_K".to_owned(), ProductRate { sequential: 1e9, scattered: 5e8 });
        assert_eq!(machine.cpu.rate(TensorType::Q4_0), ProductRate { sequential: 1e9, scattered: 5e8 });
        assert!(!machine.knows(&[TensorType::F16, TensorType::Q4_0]) && machine.knows(&[TensorType::F16]));
        machine.cpu.rates.clear();
        assert!(machine.cpu.rate(TensorType::Q4_0).sequential < machine.cpu.memory);
    }

    #[test]
    fn rates_in_bursts_are_the_fraction_that_remains() {
        let mut machine = Machine::typical();
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.bursts.insert("Q4_0".to_owned(), 0.5);
        let both = |gpu: &GpuRates, ty| [DeviceClocks::Sustained, DeviceClocks::Sunken].map(|it| gpu.rate_at(it, ty));
        let [sustained, sunken] = both(gpu, TensorType::Q4_0);
        assert_eq!(sustained, gpu.rate(TensorType::Q4_0));
        assert_eq!((sunken.sequential, sunken.scattered), (sustained.sequential / 2.0, sustained.scattered / 2.0));
        let [sustained, sunken] = both(gpu, TensorType::F16);
        assert_eq!(sunken, sustained, "its clocks do not matter");
        gpu.bursts.remove("F16");
        let [sustained, sunken] = both(gpu, TensorType::F16);
        assert_eq!(sunken.sequential, sustained.sequential / 2.0, "as the type that loses most");
        assert!(!machine.knows(&[TensorType::F16]) && machine.knows(&[TensorType::Q4_0]));
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.bursts.clear();
        assert_eq!(gpu.rate_at(DeviceClocks::Sunken, TensorType::F16), gpu.rate(TensorType::F16), "nothing is known");
    }
}
