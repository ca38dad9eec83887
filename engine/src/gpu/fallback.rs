//! Fallbacks: parts of an adapter that are done without after its driver has failed with them.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use thermocline_shaders::{KERNELS, KernelFeatures, Tier};

use super::{AdapterReport, Caps, GpuFeature};
use crate::error::first_line;

/// Identity of an adapter: its card, and the driver by which it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterId {
    /// Name, as adapters are listed.
    pub name: String,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// Driver and its version.
    pub driver: String,
    /// Place on the bus; empty where the driver does not say.
    pub pci_bus_id: String,
}

impl AdapterId {
    /// The identity of a listed adapter.
    pub fn of(report: &AdapterReport) -> Self {
        let AdapterReport { name, backend, driver, pci_bus_id, .. } = report.clone();
        AdapterId { name, backend, driver, pci_bus_id }
    }
}

/// Part of an adapter that is done without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackPart {
    /// One of its features.
    Feature(GpuFeature),
    /// The adapter: its card is used over another backend, or not at all.
    Adapter,
}

/// A part of an adapter that is done without, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The adapter.
    pub adapter: AdapterId,
    /// The part.
    pub part: FallbackPart,
    /// The driver's failure, in half a sentence.
    pub why: String,
}

impl fmt::Display for Fallback {
    /// A sentence without its full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdapterId { name, backend, .. } = &self.adapter;
        match self.part {
            FallbackPart::Feature(feature) => write!(f, "{name} over {backend} does without {}", feature.name())?,
            FallbackPart::Adapter => write!(f, "{name} is not used over {backend}")?,
        }
        write!(f, ": {}", self.why)
    }
}

/// The fallbacks in force; a handle that may be cloned.
#[derive(Debug, Clone, Default)]
pub struct Fallbacks(Arc<Mutex<FallbackState>>);

#[derive(Debug, Default)]
struct FallbackState {
    all: Vec<Fallback>,
    /// Adapters that were opened, or were to be, each once, the last one behind.
    in_use: Vec<AdapterUse>,
}

/// An adapter and the features that kernels may use on it.
#[derive(Debug)]
struct AdapterUse {
    adapter: AdapterId,
    caps: Caps,
    packed: bool,
}

impl AdapterUse {
    /// Features that some kernel uses there.
    fn features(&self) -> KernelFeatures {
        let mut all = KernelFeatures { cooperative: self.caps.cooperative_matrix, ..KernelFeatures::default() };
        for kernel in KERNELS {
            if (kernel.cooperative && !self.caps.cooperative_matrix) || (kernel.packed && !self.packed) {
                continue;
            }
            let uses = kernel.features(self.caps.tier, kernel.weights.first().copied());
            let (subgroups, f16) = (all.tier.subgroups | uses.tier.subgroups, all.tier.f16 | uses.tier.f16);
            all = KernelFeatures { packed: all.packed | uses.packed, tier: Tier { subgroups, f16 }, ..all };
        }
        all
    }
}

impl GpuFeature {
    /// True if it is among those that a kernel uses.
    fn is_in(self, used: KernelFeatures) -> bool {
        match self {
            GpuFeature::CooperativeMatrices => used.cooperative,
            GpuFeature::PackedDot => used.packed,
            GpuFeature::F16 => used.tier.f16,
            GpuFeature::Subgroups => used.tier.subgroups,
        }
    }
}

impl Fallbacks {
    /// Adds a fallback; of one part of an adapter the first one stays.
    pub fn add(&self, fallback: Fallback) {
        let all = &mut self.0.lock().all;
        if !all.iter().any(|it| it.adapter == fallback.adapter && it.part == fallback.part) {
            tracing::warn!(%fallback, "the GPU is used for less");
            all.push(fallback);
        }
    }

    /// Gives up one more part of `adapter`, because of `why`: the most doubtful feature of those that were `used` and are not given up
    /// yet; without any the adapter.
    pub(crate) fn step(&self, adapter: &AdapterId, used: KernelFeatures, why: &str) -> Fallback {
        let given_up = self.of(adapter);
        let is_left = |feature: &GpuFeature| {
            feature.is_in(used) && !given_up.iter().any(|it| it.part == FallbackPart::Feature(*feature))
        };
        let part = GpuFeature::ALL.into_iter().find(is_left).map_or(FallbackPart::Adapter, FallbackPart::Feature);
        let fallback = Fallback { adapter: adapter.clone(), part, why: first_line(why) };
        self.add(fallback.clone());
        fallback
    }

    /// Notes that `adapter` is to be used with these capabilities, and with packed dot products or without.
    pub(super) fn note_use(&self, adapter: AdapterId, caps: Caps, packed: bool) {
        let in_use = &mut self.0.lock().in_use;
        in_use.retain(|it| it.adapter != adapter);
        in_use.push(AdapterUse { adapter, caps, packed });
    }

    /// Gives up one more part of the adapter that was opened last under this name, after it was lost more often than can be borne.
    pub fn after_losses(&self, name: &str, why: &str) -> Option<Fallback> {
        let state = self.0.lock();
        let last = state.in_use.iter().rfind(|it| it.adapter.name == name)?;
        let (adapter, used) = (last.adapter.clone(), last.features());
        drop(state);
        Some(self.step(&adapter, used, why))
    }

    /// All of them, in the order in which they were added.
    pub fn all(&self) -> Vec<Fallback> {
        self.0.lock().all.clone()
    }

    /// Those of an adapter.
    pub fn of(&self, adapter: &AdapterId) -> Vec<Fallback> {
        self.0.lock().all.iter().filter(|it| it.adapter == *adapter).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Error,
        gpu::{AdapterChoice, Gpu, GpuOptions, WeightType, adapters},
    };

    #[test]
    fn fallbacks_are_sentences_and_kept_once_per_part() {
        let adapter = AdapterId {
            name: "Arc".to_owned(),
            backend: "vulkan".to_owned(),
            driver: "Mesa 25".to_owned(),
            pci_bus_id: String::new(),
        };
        let fallback = |part, why: &str| Fallback { adapter: adapter.clone(), part, why: why.to_owned() };
        let all = Fallbacks::default();
        all.add(fallback(FallbackPart::Feature(GpuFeature::PackedDot), "the driver refused `gemv_dot`"));
        all.add(fallback(FallbackPart::Feature(GpuFeature::PackedDot), "again"));
        all.add(fallback(FallbackPart::Adapter, "it was lost three times"));
        let sentences: Vec<String> = all.of(&adapter).iter().map(Fallback::to_string).collect();
        assert_eq!(
            sentences,
            [
                "Arc over vulkan does without packed dot products: the driver refused `gemv_dot`",
                "Arc is not used over vulkan: it was lost three times",
            ]
        );
        let updated = AdapterId { driver: "Mesa 26".to_owned(), ..adapter };
        assert!(all.of(&updated).is_empty(), "another driver starts afresh");
    }

    #[test]
    fn devices_open_without_what_is_given_up() {
        let all = Fallbacks::default();
        let adapter = AdapterId::of(&adapters(&all)[0]);
        let give_up = |part| all.add(Fallback { adapter: adapter.clone(), part, why: "it was wrong".to_owned() });
        let open = || {
            let (adapter, fallbacks) = (AdapterChoice::Index(0), all.clone());
            Gpu::open(&GpuOptions { adapter, packed_dot: Some(true), fallbacks, ..GpuOptions::default() })
        };
        let has = || {
            let gpu = open().unwrap();
            let tier = gpu.caps().tier;
            (gpu.shape(WeightType::Q4_0).unwrap().packed, tier.f16, tier.subgroups)
        };
        assert_eq!(has(), (true, true, true));
        give_up(FallbackPart::Feature(GpuFeature::PackedDot));
        assert_eq!(has(), (false, true, true), "whatever is asked for");
        give_up(FallbackPart::Feature(GpuFeature::F16));
        assert_eq!(has(), (false, false, true));
        give_up(FallbackPart::Feature(GpuFeature::Subgroups));
        assert_eq!(has(), (false, false, false));
        give_up(FallbackPart::Adapter);
        let Err(Error::Gpu { reason, .. }) = open() else { panic!("it was given up") };
        assert!(reason.ends_with("is not used over vulkan: it was wrong"), "{reason}");
    }
}
