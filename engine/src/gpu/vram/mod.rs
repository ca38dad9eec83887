//! What the system says about an adapter's memory: the graphics driver ([`super::raw`]), NVIDIA's management library
//! ([`nvml`]) and the kernel ([`sysfs`]). Each knows a part, counts in its own way and may be missing, so every reading
//! names its source and nothing depends on one: the engine's promise is its own accounting ([`super::Arena`]).

mod nvml;
mod sysfs;

use std::path::Path;

use serde::Serialize;

use super::raw;

/// Who a reading comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum VramSource {
    /// NVIDIA's management library.
    #[serde(rename = "NVML")]
    Nvml,
    /// The Linux kernel's graphics driver.
    #[serde(rename = "DRM sysfs")]
    Sysfs,
    /// `VK_EXT_memory_budget`.
    Vulkan,
    /// Windows' graphics kernel.
    #[serde(rename = "DXGI")]
    Dxgi,
    /// Apple's graphics kernel.
    Metal,
}

impl VramSource {
    /// As it is shown and printed.
    pub const fn name(self) -> &'static str {
        match self {
            VramSource::Nvml => "NVML",
            VramSource::Sysfs => "DRM sysfs",
            VramSource::Vulkan => "Vulkan",
            VramSource::Dxgi => "DXGI",
            VramSource::Metal => "Metal",
        }
    }
}

/// One source's view of an adapter's memory at one moment, in bytes; `None` where the source does not say. Where GPU and CPU
/// share their memory it is the share of it that the GPU may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VramReading {
    /// Who says so.
    pub source: VramSource,
    /// All there is.
    #[serde(rename = "total_bytes")]
    pub total: Option<u64>,
    /// Used by all programs together.
    #[serde(rename = "used_bytes")]
    pub used: Option<u64>,
    /// Used by this process.
    #[serde(rename = "used_here_bytes")]
    pub used_here: Option<u64>,
    /// What this process may use in all, as things stand.
    #[serde(rename = "budget_bytes")]
    pub budget: Option<u64>,
}

impl VramReading {
    /// A source that has not said anything yet.
    pub(super) fn nothing(source: VramSource) -> Self {
        VramReading { source, total: None, used: None, used_here: None, budget: None }
    }

    /// What this process can still allocate before somebody has to make room.
    pub fn available(&self) -> Option<u64> {
        match (self.budget, self.used_here, self.total, self.used) {
            (Some(budget), Some(here), ..) => Some(budget.saturating_sub(here)),
            (_, _, Some(total), Some(used)) => Some(total.saturating_sub(used)),
            _ => None,
        }
    }

    fn says_something(&self) -> bool {
        *self != Self::nothing(self.source)
    }
}

/// Every source's reading of `adapter`, the system's before the driver's. Never fails: a source that is missing is left out.
pub(super) fn readings(adapter: &wgpu::Adapter) -> Vec<VramReading> {
    let pci = adapter.get_info().device_pci_bus_id;
    let sources = [nvml::read(&pci), sysfs::read(Path::new("/sys"), &pci), raw::driver_memory(adapter)];
    sources.into_iter().flatten().filter(VramReading::says_something).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_the_most_certain_difference() {
        let nothing = VramReading::nothing(VramSource::Vulkan);
        assert_eq!(nothing.available(), None);
        assert!(!nothing.says_something());
        let counted = VramReading { total: Some(100), used: Some(30), ..nothing };
        assert_eq!(counted.available(), Some(70));
        assert_eq!(VramReading { budget: Some(50), used_here: Some(60), ..counted }.available(), Some(0));
        let json = serde_json::to_value(VramReading { source: VramSource::Sysfs, ..counted }).unwrap();
        assert_eq!(json["source"], VramSource::Sysfs.name());
        assert_eq!((json["total_bytes"].as_u64(), json["budget_bytes"].as_u64()), (Some(100), None));
    }
}
