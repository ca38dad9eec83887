//! The adapters of this machine, and the choice of one.

use std::{fmt, str::FromStr};

use serde::Serialize;

use super::{
    AdapterId, Caps, CreationLock, Fallback, FallbackPart, Fallbacks, GpuFeature, RiskyStep, VramReading,
    faults::FaultCounter, vram,
};
use crate::error::{Error, GpuFailure, Result};

/// Kind of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterKind {
    /// A card with memory of its own.
    Discrete,
    /// Shares the CPU's memory.
    Integrated,
    /// Lent by a hypervisor.
    Virtual,
    /// A driver that computes on the CPU.
    Software,
    /// The driver does not say.
    Other,
}

impl AdapterKind {
    /// Name, as shown and printed.
    pub const fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Software => "software",
            AdapterKind::Other => "other",
        }
    }
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<wgpu::DeviceType> for AdapterKind {
    fn from(kind: wgpu::DeviceType) -> Self {
        match kind {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => AdapterKind::Other,
        }
    }
}

/// One adapter, as its driver describes it.
#[derive(Debug, Clone)]
pub struct AdapterReport {
    /// Place in the list, by which it may be chosen.
    pub index: usize,
    /// Name; of cards that are called the same, each with its place.
    pub name: String,
    /// Its kind.
    pub kind: AdapterKind,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// Driver and its version.
    pub driver: String,
    /// `0000:01:00.0`; empty where the driver does not say.
    pub pci_bus_id: String,
    /// Its limits and features.
    pub caps: Caps,
    /// Readings of its memory when it was listed, one per source.
    pub vram: Vec<VramReading>,
    /// Parts of it that are done without.
    pub fallbacks: Vec<Fallback>,
}

impl AdapterReport {
    /// True unless all of it is done without.
    pub fn is_usable(&self) -> bool {
        !self.fallbacks.iter().any(|it| it.part == FallbackPart::Adapter)
    }

    /// Features that are done without.
    pub fn features_given_up(&self) -> impl Iterator<Item = GpuFeature> {
        self.fallbacks.iter().filter_map(|it| match it.part {
            FallbackPart::Feature(feature) => Some(feature),
            FallbackPart::Adapter | FallbackPart::Backend => None,
        })
    }

    /// True if `other` is the same card, perhaps over another backend.
    fn is_same_card(&self, other: &AdapterReport) -> bool {
        match (self.pci_bus_id.as_str(), other.pci_bus_id.as_str()) {
            ("", _) | (_, "") => self.name == other.name,
            (place, other) => place == other,
        }
    }

    /// Place of its backend in the order in which they are preferred.
    fn backend_rank(&self) -> usize {
        const ORDER: [&str; 3] = ["vulkan", "metal", "dx12"];
        ORDER.iter().position(|it| *it == self.backend).unwrap_or(ORDER.len())
    }
}

/// Choice of an adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The most capable one that is not software.
    #[default]
    Best,
    /// The one at this place of [`adapters`]' list.
    Index(usize),
    /// The first whose name contains this, in any case.
    Name(String),
}

impl AdapterChoice {
    /// True if `adapter` is what it names.
    pub fn names(&self, adapter: &AdapterReport) -> bool {
        match self {
            AdapterChoice::Best => adapter.kind != AdapterKind::Software,
            AdapterChoice::Index(index) => adapter.index == *index,
            AdapterChoice::Name(name) => adapter.name.to_lowercase().contains(&name.to_lowercase()),
        }
    }

    /// Index of the chosen adapter in `all`: the first of those that it means which is not done without.
    pub fn among(&self, all: &[AdapterReport]) -> Option<usize> {
        self.ranked(all).into_iter().find(|at| all[*at].is_usable())
    }

    /// The error of a choice that names none of `all`.
    pub fn error(&self, all: &[AdapterReport]) -> Error {
        let names: Vec<String> = all.iter().map(|it| format!("{} {} ({})", it.index, it.name, it.kind)).collect();
        no_gpu(self, there(self, &names))
    }

    /// Indices of the adapters in `all` that it means, the preferred one first: a card over the other backends comes behind its first
    /// one, and before the next card.
    fn ranked(&self, all: &[AdapterReport]) -> Vec<usize> {
        let meant = |it: &AdapterReport| all.iter().any(|other| self.names(other) && other.is_same_card(it));
        let rank = |it: &AdapterReport| {
            let kind = match (self, it.kind) {
                (AdapterChoice::Index(_) | AdapterChoice::Name(_), _) | (_, AdapterKind::Discrete) => 0,
                (_, AdapterKind::Integrated) => 1,
                (_, AdapterKind::Virtual | AdapterKind::Other | AdapterKind::Software) => 2,
            };
            let card = all.iter().position(|other| other.is_same_card(it));
            // The one that was asked for by its number is that one, whatever its backend.
            let asked = matches!(self, AdapterChoice::Index(index) if it.index == *index);
            (kind, card, !asked, it.backend_rank(), it.index)
        };
        let mut ranked: Vec<usize> = (0..all.len()).filter(|at| meant(&all[*at])).collect();
        ranked.sort_by_key(|at| rank(&all[*at]));
        ranked
    }
}

impl FromStr for AdapterChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| AdapterChoice::Name(text.to_owned()), AdapterChoice::Index))
    }
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterChoice::Best => f.write_str("the best"),
            AdapterChoice::Index(index) => index.fmt(f),
            AdapterChoice::Name(name) => name.fmt(f),
        }
    }
}

/// Percentage of the driver's budget above which it refuses buffers rather than starting to page.
const MEMORY_THRESHOLD: u8 = 90;

/// Every adapter that can run the kernels, in the drivers' order, with its part of `fallbacks`.
pub fn adapters(fallbacks: &Fallbacks) -> Vec<AdapterReport> {
    enumerate(fallbacks, &FaultCounter::default()).into_iter().map(|(report, _)| report).collect()
}

/// Backends that compute, the preferred one first. OpenGL is none of them.
const BACKENDS: [(wgpu::Backends, &str); 3] =
    [(wgpu::Backends::VULKAN, "vulkan"), (wgpu::Backends::METAL, "metal"), (wgpu::Backends::DX12, "dx12")];

fn enumerate(fallbacks: &Fallbacks, faults: &FaultCounter) -> Vec<(AdapterReport, wgpu::Adapter)> {
    fallbacks.refresh();
    let mut found = Vec::new();
    for (backend, name) in BACKENDS {
        let id = AdapterId::of_backend(name);
        if wgpu::Instance::enabled_backend_features().contains(backend) && fallbacks.of(&id).is_empty() {
            let fallback = Fallback::new(id, FallbackPart::Backend, "the program ended while they were looked for");
            let marker = fallbacks.mark(RiskyStep::Enumeration, &fallback, faults);
            found.extend(of_backend(backend));
            drop(marker);
        }
    }
    let usable = found.into_iter().filter(|adapter| adapter.features().contains(Caps::REQUIRED));
    let (mut reports, adapters): (Vec<_>, Vec<_>) =
        usable.enumerate().map(|(index, adapter)| (report(index, &adapter), adapter)).unzip();
    tell_apart(&mut reports);
    reports.iter_mut().for_each(|it| it.fallbacks = fallbacks.of(&AdapterId::of(it)));
    reports.into_iter().zip(adapters).collect()
}

/// The adapters of a backend.
fn of_backend(backend: wgpu::Backends) -> Vec<wgpu::Adapter> {
    let _lock = CreationLock::take();
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backend;
    // Validation layers and the like are for debugging, and environment variables are no interface.
    descriptor.flags = wgpu::InstanceFlags::empty();
    descriptor.memory_budget_thresholds.for_resource_creation = Some(MEMORY_THRESHOLD);
    let instance = wgpu::Instance::new(descriptor);
    pollster::block_on(instance.enumerate_adapters(backend))
}

/// Gives adapters of one name and backend names of their own, by which they may be chosen and are found again: with their place on
/// the bus, or in the list where that is unknown or the same. A card has the same name over every backend.
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
    AdapterReport {
        index,
        name: info.name.clone(),
        kind: info.device_type.into(),
        backend: info.backend.to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        pci_bus_id: info.device_pci_bus_id.clone(),
        caps: Caps::of(adapter),
        vram: vram::readings(adapter),
        fallbacks: Vec::new(),
    }
}

/// True if the kernel has a driver for an adapter that is not software; true as well where it cannot be asked.
///
/// Loading the Vulkan drivers takes a moment, and some of them write to standard error: not for a choice that can only be none.
fn has_hardware() -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let render_node = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("renderD"))
    };
    let drm = std::fs::read_dir("/dev/dri").is_ok_and(|mut entries| entries.any(render_node));
    // Of drivers without render nodes: NVIDIA's, Windows' for its guests, ARM's and Qualcomm's.
    let others = ["/dev/nvidiactl", "/dev/dxg", "/dev/mali0", "/dev/kgsl-3d0"];
    drm || others.iter().any(|path| std::path::Path::new(path).exists())
}

/// The adapter `choice` means, of those that `fallbacks` leave.
///
/// # Errors
/// [`Error::NoGpu`] if it means none, [`Error::Gpu`] if all are done without that it means.
pub(super) fn choose(
    choice: &AdapterChoice,
    fallbacks: &Fallbacks,
    faults: &FaultCounter,
) -> Result<(AdapterReport, wgpu::Adapter)> {
    if *choice == AdapterChoice::Best && !has_hardware() {
        return Err(no_gpu(choice, "no driver for one is loaded".to_owned()));
    }
    let (reports, mut adapters): (Vec<AdapterReport>, Vec<wgpu::Adapter>) =
        enumerate(fallbacks, faults).into_iter().unzip();
    if let Some(at) = choice.among(&reports) {
        return Ok((reports[at].clone(), adapters.swap_remove(at)));
    }
    if let Some(first) = choice.ranked(&reports).first().map(|at| &reports[*at]) {
        let reason = first.fallbacks.iter().map(Fallback::to_string).next_back().unwrap_or_default();
        return Err(Error::Gpu { adapter: first.name.clone(), reason, failure: GpuFailure::Unfit });
    }
    // The one that was meant may be among those that are not looked for.
    if let Some(fallback) = fallbacks.all().into_iter().find(|it| it.part == FallbackPart::Backend) {
        let (adapter, reason) = (fallback.adapter.backend.clone(), fallback.to_string());
        return Err(Error::Gpu { adapter, reason, failure: GpuFailure::Unfit });
    }
    Err(choice.error(&reports))
}

/// The adapters there are, for an error about `choice`.
fn there(choice: &AdapterChoice, names: &[String]) -> String {
    match (names.is_empty(), choice) {
        (true, _) => "no driver offers one".to_owned(),
        (false, AdapterChoice::Best) => {
            format!("software is used only when it is asked for; there is {}", names.join(", "))
        }
        (false, _) => format!("there is {}", names.join(", ")),
    }
}

fn no_gpu(choice: &AdapterChoice, there: String) -> Error {
    let wanted = match choice {
        AdapterChoice::Best => "was found".to_owned(),
        AdapterChoice::Index(index) => format!("has the number {index}"),
        AdapterChoice::Name(name) => format!("is called `{name}`"),
    };
    Error::NoGpu { wanted, there }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(index: usize, name: &str, kind: AdapterKind) -> AdapterReport {
        let (driver, backend, pci_bus_id) = (String::new(), "vulkan".to_owned(), String::new());
        let (name, vram, fallbacks) = (name.to_owned(), Vec::new(), Vec::new());
        AdapterReport { index, name, kind, backend, driver, pci_bus_id, caps: Caps::default(), vram, fallbacks }
    }

    #[test]
    fn best_never_chooses_software() {
        let software = adapter(0, "llvmpipe", AdapterKind::Software);
        let integrated = adapter(1, "Iris", AdapterKind::Integrated);
        let card = adapter(2, "GeForce", AdapterKind::Discrete);
        let among = |choice: &AdapterChoice, all: &[&AdapterReport]| {
            let all: Vec<AdapterReport> = all.iter().copied().cloned().collect();
            choice.among(&all)
        };
        assert_eq!(among(&AdapterChoice::Best, &[&software]), None);
        assert_eq!(among(&AdapterChoice::Best, &[&software, &integrated]), Some(1));
        assert_eq!(among(&AdapterChoice::Best, &[&software, &integrated, &card]), Some(2));
        assert_eq!(among(&"0".parse().unwrap(), &[&software, &card]), Some(0));
        assert_eq!(among(&"LLVM".parse().unwrap(), &[&card, &software]), Some(1));
        assert_eq!(among(&"Radeon".parse().unwrap(), &[&card, &software]), None);
        assert_eq!(among(&"7".parse().unwrap(), &[&card, &software]), None);
    }

    fn over(backend: &str, bus: &str, adapter: AdapterReport) -> AdapterReport {
        AdapterReport { backend: backend.to_owned(), pci_bus_id: bus.to_owned(), ..adapter }
    }

    #[test]
    fn card_that_is_given_up_over_a_backend_is_used_over_the_next_one() {
        let mut all = vec![
            over("dx12", "", adapter(0, "GeForce", AdapterKind::Discrete)),
            over("vulkan", "0000:01:00.0", adapter(1, "GeForce", AdapterKind::Discrete)),
            over("vulkan", "0000:02:00.0", adapter(2, "Radeon", AdapterKind::Discrete)),
            over("vulkan", "0000:02:00.0", adapter(3, "AMDVLK Radeon", AdapterKind::Discrete)),
            over("vulkan", "0000:00:02.0", adapter(4, "Iris", AdapterKind::Integrated)),
            over("vulkan", "", adapter(5, "llvmpipe", AdapterKind::Software)),
        ];
        let choices = ["geforce", "0", "radeon", "3"].map(|it| it.parse::<AdapterChoice>().unwrap());
        let means = |all: &[AdapterReport]| {
            let best = AdapterChoice::Best.among(all);
            (best, choices.each_ref().map(|choice| choice.among(all)))
        };
        assert_eq!(means(&all), (Some(1), [Some(1), Some(0), Some(2), Some(3)]));
        let mut expected = [
            (Some(0), [Some(0), Some(0), Some(2), Some(3)]),
            (Some(2), [None, None, Some(2), Some(3)]),
            (Some(3), [None, None, Some(3), Some(3)]),
            (Some(4), [None; 4]),
            // Software is never the best.
            (None, [None; 4]),
        ]
        .into_iter();
        for at in [1, 0, 2, 3, 4] {
            let fallback = Fallback::new(AdapterId::of(&all[at]), FallbackPart::Adapter, "lost");
            all[at].fallbacks.push(fallback);
            assert_eq!(Some(means(&all)), expected.next(), "without {}", all[at].name);
        }
    }

    #[test]
    fn equal_adapters_get_distinct_names() {
        let at = |index, bus: &str| {
            let pci_bus_id = bus.to_owned();
            AdapterReport { pci_bus_id, ..adapter(index, "Arc", AdapterKind::Discrete) }
        };
        let mut all = [at(0, "0000:01:00.0"), at(1, "0000:02:00.0"), adapter(2, "Iris", AdapterKind::Integrated)];
        tell_apart(&mut all);
        assert_eq!(all.each_ref().map(|it| it.name.as_str()), ["Arc [0000:01:00.0]", "Arc [0000:02:00.0]", "Iris"]);
        for (place, it) in all.iter().enumerate() {
            assert_eq!(AdapterChoice::Name(it.name.clone()).among(&all), Some(place));
        }
        assert_eq!(AdapterChoice::Name("Arc".to_owned()).among(&all), Some(0));
        let mut unplaced = [at(0, ""), at(1, "")];
        tell_apart(&mut unplaced);
        assert_eq!(unplaced.each_ref().map(|it| it.name.as_str()), ["Arc [0]", "Arc [1]"]);
        let mut card = [at(0, "0000:01:00.0"), over("dx12", "0000:01:00.0", at(1, ""))];
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
        assert!(error.starts_with("no GPU is called `no such card`: there is "), "{error}");
        assert!(known.iter().all(|it| error.contains(&it.name)), "{error}");
        assert!(!known.is_empty(), "the tests need a Vulkan driver (tests/run.sh installs one)");
    }

    #[test]
    fn no_gpu_error_is_a_sentence() {
        let sentence = |choice: AdapterChoice, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            no_gpu(&choice, there(&choice, &names)).to_string()
        };
        assert_eq!(sentence(AdapterChoice::Best, &[]), "no GPU was found: no driver offers one");
        assert_eq!(
            sentence(AdapterChoice::Index(7), &["0 llvmpipe (software)"]),
            "no GPU has the number 7: there is 0 llvmpipe (software)"
        );
        let software = sentence(AdapterChoice::Best, &["0 llvmpipe (software)"]);
        assert!(software.contains("only when it is asked for") && software.contains("llvmpipe"), "{software}");
    }

    #[test]
    fn adapters_report_their_memory() {
        for adapter in adapters(&Fallbacks::default()) {
            // Every Vulkan driver knows its heaps.
            assert!(!adapter.vram.is_empty() || adapter.backend != "vulkan", "{adapter:?}");
            for reading in adapter.vram {
                let total = reading.total.unwrap_or(0);
                assert!(total > 0 && reading.used.unwrap_or(0) <= total, "{reading:?}");
            }
        }
    }
}
