//! Drivers that are known good or bad for a part of an adapter: data with its sources, `assets/drivers.toml`.

use std::sync::OnceLock;

use serde::Deserialize;

use super::{AdapterId, Fallback, FallbackPart, GpuFeature};

/// The file.
const TEXT: &str = include_str!("../../../assets/drivers.toml");

/// Contents of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownDrivers {
    driver: Vec<KnownDriver>,
}

/// A row: a part of some adapters that is known good or bad.
#[derive(Debug, Default, Deserialize)]
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
    /// First version of the driver.
    from: Option<String>,
    /// First version of the driver that is no longer meant.
    until: Option<String>,
    part: Option<FallbackPart>,
    bad: bool,
    /// Half a sentence, for people.
    why: String,
    source: String,
}

impl KnownDriver {
    /// True if it is about `adapter` on `system`.
    fn is_about(&self, system: &str, adapter: &AdapterId) -> bool {
        let equals = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
        let contains = |wanted: &Option<String>, has: &str| {
            wanted.as_ref().is_none_or(|wanted| has.to_lowercase().contains(&wanted.to_lowercase()))
        };
        let version = version(&adapter.driver);
        let reached = |first: &Option<String>| first.as_ref().map(|first| version >= numbers(first));
        equals(&self.system, system)
            && equals(&self.backend, &adapter.backend)
            && contains(&self.driver, &adapter.driver)
            && contains(&self.adapter, &adapter.name)
            && reached(&self.from) != Some(false)
            && reached(&self.until) != Some(true)
    }
}

/// Numbers of a version: `26.5.1`.
fn numbers(text: &str) -> Vec<u64> {
    text.split('.').map_while(|part| part.parse().ok()).collect()
}

/// Numbers of the version in a driver's name, which are empty if it tells none: its first word of numbers.
fn version(driver: &str) -> Vec<u64> {
    let words = driver.split(|c: char| !c.is_ascii_digit() && c != '.');
    words.map(numbers).find(|numbers| numbers.len() > 1).unwrap_or_default()
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

/// Parts of `adapter` that are known bad, on this system.
pub(super) fn known_bad(adapter: &AdapterId) -> Vec<Fallback> {
    bad_among(rows(), std::env::consts::OS, adapter)
}

fn bad_among(rows: &[KnownDriver], system: &str, adapter: &AdapterId) -> Vec<Fallback> {
    let features = GpuFeature::ALL.into_iter().map(FallbackPart::Feature);
    let first = |part| rows.iter().find(|row| row.part == Some(part) && row.is_about(system, adapter));
    let bad =
        features.chain([FallbackPart::Adapter]).filter_map(|part| Some((part, first(part).filter(|row| row.bad)?)));
    let told = bad.inspect(|(part, row)| tracing::debug!(adapter = adapter.name, %part, row.source, "known to fail"));
    told.map(|(part, row)| Fallback::known(adapter.clone(), part, &row.why)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(backend: &str, name: &str, driver: &str) -> AdapterId {
        let [backend, name, driver] = [backend, name, driver].map(str::to_owned);
        AdapterId { name, backend, driver, pci_bus_id: String::new() }
    }

    fn bad(system: &str, adapter: &AdapterId) -> Vec<FallbackPart> {
        bad_among(rows(), system, adapter).iter().map(|it| it.part).collect()
    }

    #[test]
    fn rows_have_a_part_a_reason_and_a_source() {
        assert!(rows().len() >= 6, "{:?}", rows());
        for row in rows() {
            assert!(row.part.is_some() && !row.why.is_empty() && row.source.contains('#'), "{row:?}");
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
        let software = adapter("vulkan", "llvmpipe (LLVM 19.1.7, 256 bits)", "llvmpipe Mesa 25.0.7");
        assert!(bad_among(rows(), "linux", &software).is_empty());
    }

    #[test]
    fn first_row_of_a_part_decides_and_versions_are_numbers() {
        let row = |from: Option<&str>, until: Option<&str>, bad: bool| KnownDriver {
            driver: Some("amd".to_owned()),
            from: from.map(str::to_owned),
            until: until.map(str::to_owned),
            part: Some(FallbackPart::Adapter),
            bad,
            why: "it ends programs".to_owned(),
            ..KnownDriver::default()
        };
        let rows = [row(Some("26.8.1"), None, false), row(Some("26.5.1"), Some("27"), true)];
        let is_bad = |driver: &str| !bad_among(&rows, "windows", &adapter("vulkan", "Radeon", driver)).is_empty();
        let versions =
            ["AMD driver 26.5.1", "AMD 26.10.1", "AMD 26.4.9", "AMD driver 26.7 (LLPC)", "AMD", "NVIDIA 26.5.1"];
        assert_eq!(versions.map(is_bad), [true, false, false, true, false, false]);
        let told = &bad_among(&rows, "windows", &adapter("vulkan", "Radeon", "AMD 26.5.1"))[0];
        assert!(told.is_known() && told.to_string() == "Radeon is not used over vulkan: it ends programs", "{told:?}");
    }
}
