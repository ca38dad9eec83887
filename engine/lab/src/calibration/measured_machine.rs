//! Measured speeds of this machine, which plans use as prices. A file keeps them.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Instant,
};

use super::{
    bursts::{WithoutWaits, burst_speed},
    cpu_products::{cpu_rates, join, matrix_and_vector},
    disk::disk_rate,
    effort::MeasureEffort,
    gpu::{GpuEffort, gpu_speed, rate},
    gpu_products::{GpuProducts, gpu_kernel_speed},
    memory::read_bandwidth,
    prompts::{cpu_prompts, gpu_prompts, streams},
    turns::typical,
};
use crate::unless_stopped;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, MatmulJob};
use thermocline_formats::quant::TensorType;
use thermocline_gpu::{AdapterKind, AdapterReport, Gpu, Op, Purpose, Usage, WeightType, params};
use thermocline_run::device::limits_of;
use thermocline_run::placement::{BurstFractions, CpuRates, GpuRates, Machine, ProductRate, Rates, SharedMemory};

/// Settings of [`cached_machine`]: the folder that keeps speeds, and when to measure.
#[derive(Debug, Clone, Default)]
pub struct MachineOptions {
    /// Folder of the files. `None`: every call measures.
    pub folder: Option<PathBuf>,
    /// Measures even known speeds.
    pub again: bool,
    /// A large file on the disk whose reads are measured; `None` if no plan needs their speed.
    pub disk: Option<PathBuf>,
    /// Effort of a measurement.
    pub effort: MeasureEffort,
}

/// Callback between two measurements, which returns whether to continue.
pub type KeepGoing<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// Columns of a measured matrix, as in models with 7 billion parameters.
pub(super) const COLS: usize = 4096;

/// Loads the speeds of `cpu` and `gpu` that an earlier call of [`cached_machine`] stored in
/// `folder`. Measures nothing.
pub fn known_machine(cpu: &Cpu, gpu: Option<&AdapterReport>, folder: &Path) -> Option<Machine> {
    Machine::load(&file(folder, cpu, gpu)).ok()
}

/// Returns the path of the file that keeps the speeds of these processors.
fn file(folder: &Path, cpu: &Cpu, report: Option<&AdapterReport>) -> PathBuf {
    let threads = format!("{}, {} threads, {}", cpu_name(), cpu.pool().threads(), cpu.isa());
    let driver = report.map(|report| format!("{} {}", report.backend, report.driver));
    let device = report.zip(driver.as_ref()).map(|(report, driver)| (report.name.as_str(), driver.as_str()));
    Machine::file(folder, &threads, device)
}

/// Returns the speeds of `cpu` and `gpu` with weights of `types`. Loads them from the file of an
/// earlier call, or measures them and writes the file. Adds missing types to the file, and replaces
/// a damaged file.
///
/// # Errors
/// As [`measure_machine`]. After a cancellation, no measurement is kept. A file that cannot be
/// written is not an error, because it only costs time.
pub fn cached_machine(
    cpu: &Cpu,
    gpu: Option<&Gpu>,
    types: &[TensorType],
    options: &MachineOptions,
    go_on: KeepGoing<'_>,
) -> Result<Machine> {
    let path = options.folder.as_ref().map(|folder| file(folder, cpu, gpu.map(Gpu::report)));
    let stored = path.as_ref().and_then(|path| Machine::load(path).ok());
    // A new measurement without a file for the disk keeps the disk's speed.
    let disk = stored.as_ref().and_then(|stored| stored.disk);
    let known = stored.filter(|_| !options.again);
    let is_due = disk.is_none() || options.again;
    let measured_disk = options.disk.as_deref().filter(|_| is_due).and_then(|file| {
        let rate = disk_rate(file);
        rate.inspect_err(|error| tracing::debug!(%error, "the disk was not measured")).ok().flatten()
    });
    let machine = match known {
        Some(known) if known.knows(types) && measured_disk.is_none() => return Ok(known),
        Some(known) if known.knows(types) => known,
        Some(mut known) => {
            let cpu_lacks = lacking(&known.cpu.rates, types);
            known.cpu.rates.extend(cpu_rates(cpu, &cpu_lacks, &options.effort, go_on)?);
            known.cpu.prompts.extend(cpu_prompts(cpu, &cpu_lacks, &options.effort, go_on)?);
            if let (Some(gpu), Some(rates)) = (gpu, &mut known.gpu) {
                let lacks = lacking(&rates.rates, types);
                let (more, bursts) = decoding(gpu, &lacks, rates.hand_over, &options.effort.gpu, go_on)?;
                rates.rates.extend(more);
                rates.bursts.extend(bursts);
                rates.prompts.extend(gpu_prompts(gpu, &lacks, &options.effort.gpu, go_on)?);
                rates.streams.extend(streams(gpu, &lacks, &options.effort.gpu, go_on)?);
            }
            Machine::new(known.cpu, known.gpu)
        }
        None => measure_machine(cpu, gpu, types, &options.effort, go_on)?,
    };
    let machine = machine.with_disk(measured_disk.or(disk));
    if let Some(path) = path
        && let Err(error) = machine.store(&path)
    {
        tracing::debug!(%error, "the measured speeds of the machine were not saved");
    }
    Ok(machine)
}

/// Measures `cpu` and `gpu`, with products of weights of `types`.
///
/// # Errors
/// [`Error::Memory`] if there is no room for a measurement, [`Error::Gpu`] if the device is lost,
/// [`Error::Cancelled`].
pub fn measure_machine(
    cpu: &Cpu,
    gpu: Option<&Gpu>,
    types: &[TensorType],
    effort: &MeasureEffort,
    go_on: KeepGoing<'_>,
) -> Result<Machine> {
    unless_stopped(go_on())?;
    let cpu_speeds = CpuRates {
        name: cpu_name(),
        kernels: cpu.isa().to_string(),
        threads: cpu.pool().threads(),
        memory: read_bandwidth(cpu.pool(), effort.cpu_bytes, effort.rounds),
        join: join(cpu, go_on)?,
        rates: cpu_rates(cpu, types, effort, go_on)?,
        prompts: cpu_prompts(cpu, types, effort, go_on)?,
    };
    let gpu_speeds = gpu.map(|gpu| {
        unless_stopped(go_on())?;
        let speed = gpu_speed(gpu, &effort.gpu)?;
        let report = gpu.report();
        let hand_over = speed.hand_over.median_us / 1e6;
        let (rates, bursts) = decoding(gpu, types, hand_over, &effort.gpu, go_on)?;
        let shares_memory = report.kind.has_unified_memory() || report.kind == AdapterKind::Software;
        Ok::<_, Error>(GpuRates {
            adapter: report.name.clone(),
            driver: report.driver.clone(),
            memory: speed.read_bytes_per_second,
            dispatch: dispatch(gpu, &effort.gpu)?,
            hand_over,
            upload: speed.upload_bytes_per_second,
            download: speed.download_bytes_per_second,
            rates,
            bursts,
            prompts: gpu_prompts(gpu, types, &effort.gpu, go_on)?,
            streams: streams(gpu, types, &effort.gpu, go_on)?,
            together: if shares_memory { Some(shared_memory(cpu, gpu, effort, go_on)?) } else { None },
            limits: limits_of(&report.caps),
        })
    });
    Ok(Machine::new(cpu_speeds, gpu_speeds.transpose()?))
}

/// Returns the processor's name from the system, or else its architecture.
pub fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

/// Returns the types that `rates` does not contain.
fn lacking(rates: &Rates, types: &[TensorType]) -> Vec<TensorType> {
    types.iter().copied().filter(|ty| !rates.contains_key(ty.name())).collect()
}

/// Fraction of a card's rate that remains for scattered rows. A row is much longer than a memory
/// transaction. But rows end within transactions, and fewer reads are in flight.
const SCATTERED_FRACTION: f64 = 0.8;

/// Least fraction of a rate that remains in bursts. A lower fraction shows a machine that is busy
/// with other work, not lower clocks.
const LEAST_BURST: f64 = 0.01;

/// Measures the decoding rates of `types` on `gpu` without waits, and the fractions of them that
/// remain in bursts. A hand-over takes `hand_over` seconds.
fn decoding(
    gpu: &Gpu,
    types: &[TensorType],
    hand_over: f64,
    effort: &GpuEffort,
    go_on: KeepGoing<'_>,
) -> Result<(Rates, BurstFractions)> {
    let measured = by_encoding(types, go_on, |native| {
        let products = GpuProducts::new(gpu, native, COLS, COLS, 1, effort)?;
        let sequential = products.sustained(gpu, effort)?;
        let without_waits = WithoutWaits { bytes_per_second: sequential, hand_over };
        let burst = burst_speed(gpu, &products, &without_waits, effort)? / sequential;
        let rate = ProductRate { sequential, scattered: sequential * SCATTERED_FRACTION };
        Ok((rate, burst.clamp(LEAST_BURST, 1.0)))
    })?;
    Ok(measured.into_iter().map(|(name, (rate, burst))| ((name.clone(), rate), (name, burst))).unzip())
}

/// Returns the results of `measure` for each of `types`, by name. `measure` runs once for all types
/// with the same encoding on the device. Its argument is the file type of that encoding.
pub(super) fn by_encoding<T: Copy>(
    types: &[TensorType],
    go_on: KeepGoing<'_>,
    mut measure: impl FnMut(TensorType) -> Result<T>,
) -> Result<BTreeMap<String, T>> {
    let mut measured: BTreeMap<WeightType, T> = BTreeMap::new();
    let mut by_name = BTreeMap::new();
    for ty in types {
        unless_stopped(go_on())?;
        let on_device = ty.device_type();
        let native = TensorType::ALL.into_iter().find(|it| it.name() == on_device.name()).unwrap_or(*ty);
        let figure = match measured.get(&on_device) {
            Some(figure) => *figure,
            None => measure(native)?,
        };
        measured.insert(on_device, figure);
        by_name.insert(ty.name().to_owned(), figure);
    }
    Ok(by_name)
}

/// Measures the seconds of a minimal dispatch that waits for the previous dispatch.
fn dispatch(gpu: &Gpu, effort: &GpuEffort) -> Result<f64> {
    const ELEMENTS: u32 = 32;
    let buffer = || gpu.arena().buffer(Purpose::Scratch, "dispatches", u64::from(ELEMENTS) * 4, Usage::Storage);
    let (sum, delta) = (buffer()?, buffer()?);
    let op = Op::of(gpu, "add", ELEMENTS, &[], &[&sum, &delta])?;
    let params = params::Elements { cols: ELEMENTS, pitch: ELEMENTS, rows: 1, stride: ELEMENTS };
    let per_second = rate(gpu, effort, 1, |recorder| recorder.dispatch(&op, &params, [1, 1, 1]))?;
    Ok(1.0 / per_second.max(1.0))
}

/// Measures the fractions of both rates that remain while both processors read the same memory.
fn shared_memory(cpu: &Cpu, gpu: &Gpu, effort: &MeasureEffort, go_on: KeepGoing<'_>) -> Result<SharedMemory> {
    let (weight, x) = matrix_and_vector(TensorType::F16, effort.cpu_bytes / 4)?;
    let bytes = weight.data().len() as f64;
    let mut out = vec![0.0; weight.rows()];
    let mut product = || cpu.matmul(&mut [MatmulJob { weight: &weight, bias: None, out: &mut out }], &x, 1);
    let cpu_alone = bytes / typical(effort.rounds, &mut product, go_on)?;
    let on_gpu =
        || Ok::<_, Error>(gpu_kernel_speed(gpu, TensorType::F16, COLS, COLS, 1, &effort.gpu)?.bytes_per_second);
    let gpu_alone = on_gpu()?;
    let done = AtomicBool::new(false);
    let (cpu_beside, gpu_beside) = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (started, mut products) = (Instant::now(), 0_u32);
            while !done.load(SeqCst) || products == 0 {
                product();
                products += 1;
            }
            f64::from(products) * bytes / started.elapsed().as_secs_f64()
        });
        let beside = on_gpu();
        done.store(true, SeqCst);
        let ended = |_| Error::Stopped("a thread that measures the memory ended early".to_owned());
        Ok::<_, Error>((reading.join().map_err(ended)?, beside?))
    })?;
    let fraction = |beside: f64, alone: f64| (beside / alone).clamp(0.01, 1.0);
    Ok(SharedMemory { cpu: fraction(cpu_beside, cpu_alone), gpu: fraction(gpu_beside, gpu_alone) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_cpu::CpuOptions;
    use thermocline_gpu::{AdapterChoice, GpuOptions};

    const LITTLE: MeasureEffort = MeasureEffort {
        cpu_bytes: 1 << 20,
        gpu: GpuEffort { bytes: 1 << 20, seconds: 0.001, hand_overs: 5 },
        rounds: 1,
    };

    fn always() -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn cpu() -> Cpu {
        Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap()
    }

    #[test]
    fn machine_is_measured_once() {
        let folder = tempfile::tempdir().unwrap();
        let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }).unwrap();
        let used = gpu.arena().used();
        let options = MachineOptions {
            folder: Some(folder.path().join("machines")),
            effort: LITTLE,
            ..MachineOptions::default()
        };
        let (cpu, types) = (cpu(), [TensorType::F16, TensorType::Q4_0]);
        let measured = cached_machine(&cpu, Some(&gpu), &types, &options, &mut always).unwrap();
        assert!(measured.knows(&types) && !measured.assumed && !measured.knows(&[TensorType::Q8_0]));
        let of = measured.gpu.as_ref().unwrap();
        assert!(of.dispatch > 0.0 && of.hand_over > 0.0 && of.together.is_some(), "{of:?}");
        assert!(of.bursts.len() == 2 && of.bursts.values().all(|it| (0.01..=1.0).contains(it)), "{:?}", of.bursts);
        let scattered = measured.cpu.rate(TensorType::Q4_0);
        assert!(scattered.scattered <= scattered.sequential && measured.cpu.join > 0.0);
        let figures = [&measured.cpu.prompts, &of.prompts, &of.streams].into_iter().flat_map(|it| it.values());
        // Even a software driver does ten million multiply-adds per second, and no device does a
        // quadrillion.
        assert!(figures.clone().count() == 6 && figures.clone().all(|it| (1e7..1e15).contains(it)), "{measured:?}");
        assert_eq!(gpu.arena().used(), used, "measuring gives everything back");

        let again = cached_machine(&cpu, Some(&gpu), &types, &options, &mut always).unwrap();
        assert_eq!(again, measured);
        let there = options.folder.as_deref().unwrap();
        assert_eq!(known_machine(&cpu, Some(gpu.report()), there), Some(measured.clone()));
        assert_eq!(known_machine(&cpu, None, there), None);
        let more =
            cached_machine(&cpu, Some(&gpu), &[TensorType::Q8_0, TensorType::IQ3_S], &options, &mut always).unwrap();
        assert!(more.knows(&[TensorType::Q8_0, TensorType::IQ3_S, TensorType::F16]));
        assert_eq!(more.cpu.rates["F16"], measured.cpu.rates["F16"]);
        let anew = MachineOptions { again: true, ..options.clone() };
        assert_ne!(cached_machine(&cpu, Some(&gpu), &types, &anew, &mut always).unwrap(), measured);

        let files: Vec<PathBuf> =
            std::fs::read_dir(folder.path().join("machines")).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        std::fs::write(&files[0], b"{").unwrap();
        assert!(cached_machine(&cpu, Some(&gpu), &types, &options, &mut always).unwrap().knows(&types));
        let text = std::fs::read_to_string(&files[0]).unwrap();
        assert!(Machine::load(&files[0]).is_ok(), "it was written anew");
        // An older version has no burst speeds, and its speeds must not be used.
        let old = text.replacen("\"version\": 4", "\"version\": 3", 1).replacen("\"memory\": ", "\"memory\": 1", 1);
        assert_ne!(old, text);
        std::fs::write(&files[0], old).unwrap();
        assert_eq!(known_machine(&cpu, Some(gpu.report()), there), None);
        let measured = cached_machine(&cpu, Some(&gpu), &types, &options, &mut always).unwrap();
        assert!(measured.knows(&types) && Machine::load(&files[0]).unwrap() == measured);
        let of_disk = MachineOptions { disk: Some(folder.path().join("disk")), ..options.clone() };
        std::fs::write(folder.path().join("disk"), vec![7; 32 << 20]).unwrap();
        let with_disk = cached_machine(&cpu, Some(&gpu), &types, &of_disk, &mut always).unwrap();
        assert_eq!(with_disk.disk.is_some(), cfg!(target_os = "linux"));
        let mut without_disk = with_disk.clone();
        without_disk.disk = None;
        assert_eq!(without_disk, measured, "only the disk is measured");
        std::fs::remove_file(folder.path().join("disk")).unwrap();
        let further = [TensorType::F16, TensorType::Q5_0];
        for (types, options) in [(&types, &options), (&further, &options), (&types, &of_disk), (&types, &anew)] {
            let again = cached_machine(&cpu, Some(&gpu), types, options, &mut always).unwrap();
            assert!(again.disk == with_disk.disk && again.knows(types), "the disk is measured once");
        }
        let alone = cached_machine(&cpu, None, &types, &options, &mut always).unwrap();
        assert!(alone.gpu.is_none() && alone.knows(&types));
    }

    #[test]
    fn memory_is_shared_with_an_integrated_adapter_alone() {
        let of = |kind| {
            let adapter = AdapterChoice::Index(0);
            let options = GpuOptions { adapter, pretended_kind: Some(kind), ..GpuOptions::default() };
            let gpu = Gpu::open(&options).unwrap();
            assert_eq!(gpu.report().kind, kind);
            measure_machine(&cpu(), Some(&gpu), &[], &LITTLE, &mut always).unwrap().gpu.unwrap()
        };
        let shared = of(AdapterKind::Integrated).together.unwrap();
        assert!([shared.cpu, shared.gpu].iter().all(|it| (0.01..=1.0).contains(it)), "{shared:?}");
        assert_eq!(of(AdapterKind::Discrete).together, None);
    }

    #[test]
    fn machine_cache_in_an_unwritable_folder_is_not_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options =
            MachineOptions { folder: Some(file.path().join("x")), effort: LITTLE, ..MachineOptions::default() };
        assert!(cached_machine(&cpu(), None, &[TensorType::F32], &options, &mut always).is_ok());
    }
}
