//! Lists the adapters of this machine, as their drivers report them.

use super::{
    AdapterChoice, AdapterId, AdapterKind, AdapterReport, Caps, CreationLock, Fallback, FallbackPart, Fallbacks,
    RiskyStep,
    adapter::no_gpu,
    trust::{FaultCounter, after_first_frame},
    vram,
};
use thermocline_base::error::{Error, GpuFailure, Result};

/// Percentage of the driver's memory budget above which wgpu refuses buffers, before the system
/// starts paging.
const MEMORY_THRESHOLD: u8 = 90;

/// Returns every adapter that can run the kernels, in the drivers' order, each with its entries of
/// `fallbacks`.
pub fn adapters(fallbacks: &Fallbacks) -> Vec<AdapterReport> {
    enumerate(fallbacks, &FaultCounter::default()).into_iter().map(|(report, _)| report).collect()
}

/// Supported backends, the preferred backend first. OpenGL is not supported.
const BACKENDS: [(wgpu::Backends, &str); 3] =
    [(wgpu::Backends::VULKAN, "vulkan"), (wgpu::Backends::METAL, "metal"), (wgpu::Backends::DX12, "dx12")];

fn enumerate(fallbacks: &Fallbacks, faults: &FaultCounter) -> Vec<(AdapterReport, wgpu::Adapter)> {
    after_first_frame();
    fallbacks.refresh();
    let mut found = Vec::new();
    for (backend, name) in left_by(fallbacks) {
        let why = "the program ended while it searched for GPUs";
        let fallback = Fallback::new(AdapterId::of_backend(name), FallbackPart::Backend, why);
        let sentinel = fallbacks.guard(RiskyStep::Enumeration, &fallback, faults);
        found.extend(of_backend(backend));
        drop(sentinel);
    }
    let usable = found.into_iter().filter(|adapter| adapter.features().contains(Caps::REQUIRED));
    let (mut reports, adapters): (Vec<_>, Vec<_>) =
        usable.enumerate().map(|(index, adapter)| (report(index, &adapter), adapter)).unzip();
    tell_apart(&mut reports);
    fallbacks.delete_other_drivers(&reports.iter().map(AdapterId::of).collect::<Vec<_>>());
    reports.iter_mut().for_each(|it| it.fallbacks = fallbacks.of(&AdapterId::of(it)));
    reports.into_iter().zip(adapters).collect()
}

/// Returns the backends of this system that `fallbacks` does not disable, the preferred backend
/// first.
fn left_by(fallbacks: &Fallbacks) -> impl Iterator<Item = (wgpu::Backends, &'static str)> {
    let enabled = wgpu::Instance::enabled_backend_features();
    let here = BACKENDS.into_iter().filter(move |(backend, _)| enabled.contains(*backend));
    let is_given_up = |it: &Fallback| it.part == FallbackPart::Backend;
    here.filter(move |(_, name)| !fallbacks.of(&AdapterId::of_backend(name)).iter().any(is_given_up))
}

/// Returns the adapters of a backend.
fn of_backend(backend: wgpu::Backends) -> Vec<wgpu::Adapter> {
    let _lock = CreationLock::take();
    let instance = wgpu::Instance::new(instance_descriptor(backend));
    pollster::block_on(instance.enumerate_adapters(backend))
}

/// Returns the settings of the instance that lists the adapters of `backend`.
fn instance_descriptor(backend: wgpu::Backends) -> wgpu::InstanceDescriptor {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backend;
    // Validation layers are for debugging only, and environment variables are not part of the
    // interface. The validation of indirect calls is on by default. It adds a dispatch before each
    // indirect dispatch, and some Intel Macs cannot compile its kernel.
    descriptor.flags = wgpu::InstanceFlags::empty();
    descriptor.memory_budget_thresholds.for_resource_creation = Some(MEMORY_THRESHOLD);
    descriptor
}

/// Gives adapters with equal name and backend distinct names, so that a name identifies one
/// adapter. Appends the PCI address, or the list index if the address is unknown or equal. A card
/// keeps its name over every backend.
fn tell_apart(all: &mut [AdapterReport]) {
    let known: Vec<[String; 3]> =
        all.iter().map(|it| [it.name.clone(), it.pci_bus_id.clone(), it.backend.clone()]).collect();
    for it in all {
        let alike = || known.iter().filter(|[name, _, backend]| *name == it.name && *backend == it.backend);
        if alike().count() < 2 {
            continue;
        }
        let alone = !it.pci_bus_id.is_empty() && alike().filter(|[_, bus, _]| *bus == it.pci_bus_id).count() == 1;
        let place = if alone { it.pci_bus_id.clone() } else { it.index.to_string() };
        it.name = format!("{} [{place}]", it.name);
    }
}

fn report(index: usize, adapter: &wgpu::Adapter) -> AdapterReport {
    let info = adapter.get_info();
    let kind = AdapterKind::from(info.device_type);
    AdapterReport {
        index,
        name: info.name.clone(),
        kind,
        backend: info.backend.to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        pci_bus_id: info.device_pci_bus_id.clone(),
        caps: Caps::of(adapter),
        vram: vram::readings(adapter, kind.has_unified_memory()),
        fallbacks: Vec::new(),
    }
}

/// True if the system has a driver for an adapter that is not software, or if this cannot be
/// checked.
///
/// Loading the Vulkan drivers takes a moment, and some write to standard error. This check avoids
/// the loading if no adapter can be found.
fn has_hardware() -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let render_node = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("renderD"))
    };
    let drm = std::fs::read_dir("/dev/dri").is_ok_and(|mut entries| entries.any(render_node));
    // Devices of drivers without render nodes: NVIDIA, Windows Subsystem for Linux, ARM, Qualcomm.
    let others = ["/dev/nvidiactl", "/dev/dxg", "/dev/mali0", "/dev/kgsl-3d0"];
    drm || others.iter().any(|path| std::path::Path::new(path).exists())
}

/// Returns the adapter that `choice` matches and `fallbacks` does not disable.
///
/// # Errors
/// [`Error::NoGpu`] if no adapter matches, [`Error::Gpu`] if every matching adapter is disabled.
pub(super) fn choose(
    choice: &AdapterChoice,
    fallbacks: &Fallbacks,
    faults: &FaultCounter,
) -> Result<(AdapterReport, wgpu::Adapter)> {
    if *choice == AdapterChoice::Best && !has_hardware() {
        return Err(no_gpu(choice, "no GPU driver is loaded".to_owned()));
    }
    let (reports, mut adapters): (Vec<AdapterReport>, Vec<wgpu::Adapter>) =
        enumerate(fallbacks, faults).into_iter().unzip();
    if let Some(at) = choice.among(&reports) {
        return Ok((reports[at].clone(), adapters.swap_remove(at)));
    }
    if let Some(first) = choice.ranked(&reports).first().map(|at| &reports[*at]) {
        let of_all = first.fallbacks.iter().rfind(|it| it.part == FallbackPart::Adapter);
        let failure = GpuFailure::GivenUp { listed: true, known: of_all.is_some_and(Fallback::is_known) };
        let reason = of_all.map(Fallback::to_string).unwrap_or_default();
        return Err(Error::Gpu { adapter: first.name.clone(), reason, failure });
    }
    // The adapter may belong to a disabled backend, which was not searched.
    if let Some(fallback) = fallbacks.all().into_iter().find(|it| it.part == FallbackPart::Backend) {
        let (adapter, reason) = (fallback.adapter.backend.clone(), fallback.to_string());
        let failure = GpuFailure::GivenUp { listed: false, known: false };
        return Err(Error::Gpu { adapter, reason, failure });
    }
    Err(choice.error(&reports))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(index: usize, name: &str, bus: &str) -> AdapterReport {
        let [name, backend, pci_bus_id] = [name, "vulkan", bus].map(str::to_owned);
        AdapterReport { index, name, kind: AdapterKind::Discrete, backend, pci_bus_id, ..AdapterReport::default() }
    }

    #[test]
    fn instances_validate_nothing() {
        let descriptor = instance_descriptor(wgpu::Backends::METAL);
        assert_eq!(descriptor.flags, wgpu::InstanceFlags::empty());
        assert_eq!(descriptor.backends, wgpu::Backends::METAL);
    }

    #[test]
    fn equal_adapters_get_distinct_names() {
        let at = |index, bus: &str| adapter(index, "Arc", bus);
        let mut all = [at(0, "0000:01:00.0"), at(1, "0000:02:00.0"), adapter(2, "Iris", "")];
        tell_apart(&mut all);
        assert_eq!(all.each_ref().map(|it| it.name.as_str()), ["Arc [0000:01:00.0]", "Arc [0000:02:00.0]", "Iris"]);
        for (place, it) in all.iter().enumerate() {
            assert_eq!(AdapterChoice::Name(it.name.clone()).among(&all), Some(place));
        }
        assert_eq!(AdapterChoice::Name("Arc".to_owned()).among(&all), Some(0));
        let mut unplaced = [at(0, ""), at(1, "")];
        tell_apart(&mut unplaced);
        assert_eq!(unplaced.each_ref().map(|it| it.name.as_str()), ["Arc [0]", "Arc [1]"]);
        let mut card = [at(0, "0000:01:00.0"), AdapterReport { backend: "dx12".to_owned(), ..at(1, "0000:01:00.0") }];
        tell_apart(&mut card);
        assert_eq!(card.each_ref().map(|it| it.name.as_str()), ["Arc", "Arc"], "one card over two backends");
    }

    #[test]
    fn choose_lists_the_known_adapters_in_its_error() {
        let error =
            choose(&AdapterChoice::Name("no such card".to_owned()), &Fallbacks::default(), &FaultCounter::default())
                .unwrap_err()
                .to_string();
        let known = adapters(&Fallbacks::default());
        assert!(error.starts_with("no GPU is called `no such card`: the machine has "), "{error}");
        assert!(known.iter().all(|it| error.contains(&it.name)), "{error}");
        assert!(!known.is_empty(), "the tests need a Vulkan driver (tests/run.sh installs one)");
    }

    #[test]
    fn adapters_report_their_memory() {
        for adapter in adapters(&Fallbacks::default()) {
            // Every Vulkan driver reports its heaps.
            assert!(!adapter.vram.is_empty() || adapter.backend != "vulkan", "{adapter:?}");
            for reading in adapter.vram {
                let total = reading.total.unwrap_or(0);
                assert!(total > 0 && reading.used.unwrap_or(0) <= total, "{reading:?}");
            }
        }
    }
}
