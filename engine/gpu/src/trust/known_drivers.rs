//! Drivers that are known to fail with a part of an adapter. `assets/drivers.toml` lists them with
//! sources.

use std::sync::OnceLock;

use serde::Deserialize;

use super::{AdapterId, Fallback, FallbackPart};
use crate::GpuFeature;

/// The file.
const TEXT: &str = include_str!("../../../../assets/drivers.toml");

/// Contents of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownDrivers {
    driver: Vec<KnownDriver>,
}

/// A row: a part of some adapters that is known to fail.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownDriver {
    /// `windows`, `linux`, `macos`.
    system: Option<String>,
    /// `vulkan`, `metal`, `dx12`.
    backend: Option<String>,
    /// Part of the driver's name.
    driver: Option<String>,
    /// Part of the adapter's name.
    adapter: Option<String>,
    part: FallbackPart,
    /// Reason for users, as half a sentence.
    why: String,
    source: String,
}

impl KnownDriver {
    /// True if the row applies to `adapter` on `system`.
    fn is_about(&self, system: &str, adapter: &AdapterId) -> bool {
        let equals = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
        let contains = |wanted: &Option<String>, has: &str| {
            wanted.as_ref().is_none_or(|wanted| has.to_lowercase().contains(&wanted.to_lowercase()))
        };
        equals(&self.system, system)
            && equals(&self.backend, &adapter.backend)
            && contains(&self.driver, &adapter.driver)
            && contains(&self.adapter, &adapter.name)
    }
}

fn rows() -> &'static [KnownDriver] {
    static ROWS: OnceLock<Vec<KnownDriver>> = OnceLock::new();
    ROWS.get_or_init(|| match toml::from_str::<KnownDrivers>(TEXT) {
        Ok(known) => known.driver,
        Err(error) => {
            tracing::error!(%error, "the list of known drivers cannot be read");
            Vec::new()
        }
    })
}

/// Returns the parts of `adapter` that are known to fail on this system.
pub(super) fn known_bad(adapter: &AdapterId) -> Vec<Fallback> {
    bad_on(std::env::consts::OS, adapter)
}

fn bad_on(system: &str, adapter: &AdapterId) -> Vec<Fallback> {
    let features = GpuFeature::ALL.into_iter().map(FallbackPart::Feature);
    let first = |part: FallbackPart| rows().iter().find(|row| row.part == part && row.is_about(system, adapter));
    let bad = features.chain([FallbackPart::Adapter]).filter_map(first);
    let told = bad.inspect(
        |row| tracing::debug!(adapter = adapter.name, part = %row.part, row.source, "the driver is known to fail"),
    );
    told.map(|row| Fallback::known(adapter.clone(), row.part, &row.why)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(backend: &str, name: &str, driver: &str) -> AdapterId {
        let [backend, name, driver] = [backend, name, driver].map(str::to_owned);
        AdapterId { name, backend, driver, pci_bus_id: String::new() }
    }

    fn bad(system: &str, adapter: &AdapterId) -> Vec<FallbackPart> {
        bad_on(system, adapter).iter().map(|it| it.part).collect()
    }

    #[test]
    fn rows_have_a_reason_and_a_source() {
        assert!(rows().len() >= 6, "{:?}", rows());
        for row in rows() {
            assert!(!row.why.is_empty() && row.source.contains('#'), "{row:?}");
            assert!(row.driver.is_some() || row.adapter.is_some(), "a row of every driver: {row:?}");
        }
    }

    #[test]
    fn listed_drivers_do_without_what_is_bad_and_others_with_all() {
        let [cooperative, packed] = [GpuFeature::CooperativeMatrices, GpuFeature::PackedDot].map(FallbackPart::Feature);
        let amd = adapter(
            "vulkan",
            "AMD Radeon RX 9070 XT",
            "AMD proprietary driver 26.5.1 (AMD proprietary shader compiler)",
        );
        assert_eq!(bad("windows", &amd), [cooperative]);
        assert!(bad("linux", &adapter("vulkan", "AMD Radeon RX 9070 XT", "radv Mesa 25.2.1")).is_empty());
        let intel = adapter("vulkan", "Intel(R) Arc(TM) A770", "Intel Corporation 101.8826");
        assert_eq!(bad("windows", &intel), [cooperative]);
        assert!(
            bad("linux", &adapter("vulkan", "Intel(R) Arc(tm) A770", "Intel open-source Mesa driver Mesa 25.2"))
                .is_empty()
        );
        assert!(bad("windows", &adapter("dx12", "Intel(R) Arc(TM) A770", "32.0.101.8826")).is_empty());
        assert_eq!(bad("linux", &adapter("vulkan", "PowerVR D-Series", "PowerVR 24.2")), [cooperative, packed]);
        let adreno = adapter("vulkan", "Qualcomm(R) Adreno(TM) X1-85 GPU", "Qualcomm 512.819");
        assert_eq!(bad("windows", &adreno), [packed, FallbackPart::Adapter]);
        assert_eq!(bad("windows", &AdapterId { backend: "dx12".to_owned(), ..adreno }), [packed]);
        assert!(bad("windows", &adapter("vulkan", "NVIDIA GeForce RTX 4090", "NVIDIA 560.94")).is_empty());
        let told = &bad_on("windows", &amd)[0];
        assert!(
            told.is_known()
                && told.to_string().contains(" runs without cooperative matrices over vulkan: AMD's driver "),
            "{told:?}"
        );
        let software = adapter("vulkan", "llvmpipe (LLVM 19.1.7, 256 bits)", "llvmpipe Mesa 25.0.7");
        assert!(bad_on("linux", &software).is_empty());
    }
}
