//! Description of an adapter by its driver, and the choice of one adapter among several.

use std::{fmt, str::FromStr};

use serde::Serialize;

use super::{AdapterId, Caps, Fallback, FallbackPart, GpuFeature, VramReading};
use thermocline_base::error::Error;

/// Kind of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterKind {
    /// A card with its own memory.
    Discrete,
    /// An adapter that shares the CPU's memory.
    Integrated,
    /// A virtual adapter, provided by a hypervisor.
    Virtual,
    /// A driver that computes on the CPU.
    Software,
    /// The driver does not report the kind.
    #[default]
    Other,
}

impl AdapterKind {
    /// Returns the name, as shown and printed.
    pub const fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Software => "software",
            AdapterKind::Other => "other",
        }
    }

    /// True if the adapter's memory is a part of the CPU's memory.
    pub const fn has_unified_memory(self) -> bool {
        matches!(self, AdapterKind::Integrated)
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

/// Description of one adapter by its driver.
#[derive(Debug, Clone, Default)]
pub struct AdapterReport {
    /// Index in the list of adapters. The user can choose the adapter by it.
    pub index: usize,
    /// Name. Equal names have the PCI address or the index appended.
    pub name: String,
    /// Kind.
    pub kind: AdapterKind,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// Driver and its version.
    pub driver: String,
    /// PCI address, as `0000:01:00.0`. Empty if the driver does not report it.
    pub pci_bus_id: String,
    /// Limits and features.
    pub caps: Caps,
    /// Readings of the adapter's memory when it was listed, one per source.
    pub vram: Vec<VramReading>,
    /// Parts of the adapter that are disabled.
    pub fallbacks: Vec<Fallback>,
}

impl AdapterId {
    /// Returns the identity of a listed adapter.
    pub fn of(report: &AdapterReport) -> Self {
        let AdapterReport { name, backend, driver, pci_bus_id, .. } = report.clone();
        AdapterId { name, backend, driver, pci_bus_id }
    }
}

impl AdapterReport {
    /// True unless the whole adapter is disabled.
    pub fn is_usable(&self) -> bool {
        !self.fallbacks.iter().any(|it| it.part == FallbackPart::Adapter)
    }

    /// Returns the bytes of the adapter's memory, by the first source that reports them.
    pub fn memory(&self) -> Option<u64> {
        self.vram.iter().find_map(|reading| reading.total)
    }

    /// Returns the disabled features.
    pub fn features_given_up(&self) -> impl Iterator<Item = GpuFeature> {
        self.fallbacks.iter().filter_map(|it| match it.part {
            FallbackPart::Feature(feature) => Some(feature),
            FallbackPart::Adapter | FallbackPart::Backend | FallbackPart::Window => None,
        })
    }

    /// True if `other` is the same card, perhaps over another backend.
    fn is_same_card(&self, other: &AdapterReport) -> bool {
        match (self.pci_bus_id.as_str(), other.pci_bus_id.as_str()) {
            ("", _) | (_, "") => self.name == other.name,
            (place, other) => place == other,
        }
    }

    /// Rank of the adapter's backend in the order of preference.
    fn backend_rank(&self) -> usize {
        const ORDER: [&str; 3] = ["vulkan", "metal", "dx12"];
        ORDER.iter().position(|it| *it == self.backend).unwrap_or(ORDER.len())
    }
}

/// Choice of an adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The most capable adapter that is not software.
    #[default]
    Best,
    /// The adapter at this index of the list of [`adapters`](super::adapters).
    Index(usize),
    /// The first adapter whose name contains this text, ignoring case.
    Name(String),
}

impl AdapterChoice {
    /// True if the choice matches `adapter`.
    pub fn names(&self, adapter: &AdapterReport) -> bool {
        match self {
            AdapterChoice::Best => adapter.kind != AdapterKind::Software,
            AdapterChoice::Index(index) => adapter.index == *index,
            AdapterChoice::Name(name) => adapter.name.to_lowercase().contains(&name.to_lowercase()),
        }
    }

    /// Returns the index in `all` of the first matching adapter that is not disabled.
    pub fn among(&self, all: &[AdapterReport]) -> Option<usize> {
        self.ranked(all).into_iter().find(|at| all[*at].is_usable())
    }

    /// Returns the error of a choice that matches no adapter in `all`.
    pub fn error(&self, all: &[AdapterReport]) -> Error {
        let names: Vec<String> = all.iter().map(|it| format!("{} {} ({})", it.index, it.name, it.kind)).collect();
        no_gpu(self, there(self, &names))
    }

    /// Returns the indices of the matching adapters in `all`, the preferred adapter first. The
    /// entries of one card over other backends follow its first entry directly.
    pub(super) fn ranked(&self, all: &[AdapterReport]) -> Vec<usize> {
        let meant = |it: &AdapterReport| all.iter().any(|other| self.names(other) && other.is_same_card(it));
        let rank = |it: &AdapterReport| {
            let kind = match (self, it.kind) {
                (AdapterChoice::Index(_) | AdapterChoice::Name(_), _) | (_, AdapterKind::Discrete) => 0,
                (_, AdapterKind::Integrated) => 1,
                (_, AdapterKind::Virtual | AdapterKind::Other | AdapterKind::Software) => 2,
            };
            let card = all.iter().position(|other| other.is_same_card(it));
            // A choice by index prefers exactly that adapter, whatever its backend.
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

/// Lists the available adapters, for an error about `choice`.
fn there(choice: &AdapterChoice, names: &[String]) -> String {
    match (names.is_empty(), choice) {
        (true, _) => "no driver offers a GPU".to_owned(),
        (false, AdapterChoice::Best) => {
            format!("a software adapter is used only if you select it; the machine has {}", names.join(", "))
        }
        (false, _) => format!("the machine has {}", names.join(", ")),
    }
}

/// Returns the error of a choice that matches no adapter.
pub(super) fn no_gpu(choice: &AdapterChoice, there: String) -> Error {
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
        let [name, backend] = [name, "vulkan"].map(str::to_owned);
        AdapterReport { index, name, kind, backend, ..AdapterReport::default() }
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
            // A software adapter is never chosen as the best.
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
    fn no_gpu_error_is_a_sentence() {
        let sentence = |choice: AdapterChoice, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            no_gpu(&choice, there(&choice, &names)).to_string()
        };
        assert_eq!(sentence(AdapterChoice::Best, &[]), "no GPU was found: no driver offers a GPU");
        assert_eq!(
            sentence(AdapterChoice::Index(7), &["0 llvmpipe (software)"]),
            "no GPU has the number 7: the machine has 0 llvmpipe (software)"
        );
        let software = sentence(AdapterChoice::Best, &["0 llvmpipe (software)"]);
        assert!(software.contains("only if you select it") && software.contains("llvmpipe"), "{software}");
    }
}
