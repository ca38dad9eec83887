//! Fallbacks: parts of an adapter that are done without after its driver has failed with them.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{AdapterReport, GpuFeature};

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
pub struct Fallbacks(Arc<Mutex<Vec<Fallback>>>);

impl Fallbacks {
    /// Adds a fallback; of one part of an adapter the first one stays.
    pub fn add(&self, fallback: Fallback) {
        let mut all = self.0.lock();
        if !all.iter().any(|it| it.adapter == fallback.adapter && it.part == fallback.part) {
            tracing::warn!(%fallback, "the GPU is used for less");
            all.push(fallback);
        }
    }

    /// All of them, in the order in which they were added.
    pub fn all(&self) -> Vec<Fallback> {
        self.0.lock().clone()
    }

    /// Those of an adapter.
    pub fn of(&self, adapter: &AdapterId) -> Vec<Fallback> {
        self.0.lock().iter().filter(|it| it.adapter == *adapter).cloned().collect()
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
