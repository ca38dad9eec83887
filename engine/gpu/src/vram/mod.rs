//! The system's readings of an adapter's memory, from the graphics driver ([`driver`]), NVIDIA's
//! management library ([`nvml`]) and the kernel ([`sysfs`]). Each source reports a part, counts in
//! its own way and may be missing. Every reading therefore names its source, and nothing depends on
//! a single source. The engine guarantees only its own accounting ([`super::Arena`]).

mod driver;
mod nvml;
mod sysfs;

use std::path::Path;

use serde::Serialize;

/// Source of a reading.
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
    /// Returns the name, as shown and printed.
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

/// One source's reading of an adapter's memory, in bytes. `None` if the source does not report the
/// value. With unified memory, it covers the part that the GPU may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VramReading {
    /// Source of the reading.
    pub source: VramSource,
    /// Size of the memory.
    #[serde(rename = "total_bytes")]
    pub total: Option<u64>,
    /// Bytes used by all programs together.
    #[serde(rename = "used_bytes")]
    pub used: Option<u64>,
    /// Bytes used by this process.
    #[serde(rename = "used_here_bytes")]
    pub used_here: Option<u64>,
    /// Most bytes that this process may use now, including the bytes that it uses already.
    #[serde(rename = "budget_bytes")]
    pub budget: Option<u64>,
}

impl VramReading {
    /// Creates an empty reading of `source`.
    pub(super) fn empty(source: VramSource) -> Self {
        VramReading { source, total: None, used: None, used_here: None, budget: None }
    }

    /// Returns the bytes that this process can still allocate before the system must evict memory.
    pub fn available(&self) -> Option<u64> {
        match (self.budget, self.used_here, self.total, self.used) {
            (Some(budget), Some(here), ..) => Some(budget.saturating_sub(here)),
            (_, _, Some(total), Some(used)) => Some(total.saturating_sub(used)),
            _ => None,
        }
    }

    fn is_known(&self) -> bool {
        *self != Self::empty(self.source)
    }
}

/// Returns every source's reading of `adapter`. `unified` means that the adapter shares the CPU's
/// memory. Never fails: missing sources are omitted.
pub(super) fn readings(adapter: &wgpu::Adapter, unified: bool) -> Vec<VramReading> {
    let pci = &adapter.get_info().device_pci_bus_id;
    let of_system = [nvml::read(pci), sysfs::read(Path::new("/sys"), pci, unified)];
    in_order(of_system, driver::read(adapter, unified))
}

/// Returns the readings with values, the system's before the driver's. The system counts all
/// programs, and `VK_EXT_memory_budget` has reported wrong counts on AMD cards.
fn in_order(of_system: [Option<VramReading>; 2], of_driver: Option<VramReading>) -> Vec<VramReading> {
    // Some drivers report a budget larger than their heap.
    let within_total = |it: VramReading| VramReading {
        budget: it.budget.map(|budget| budget.min(it.total.unwrap_or(u64::MAX))),
        ..it
    };
    of_system.into_iter().chain([of_driver]).flatten().map(within_total).filter(VramReading::is_known).collect()
}

/// Returns the bytes that a device may allocate by default: nine tenths of the free bytes in the
/// first reading that reports them.
pub(super) fn budget(readings: &[VramReading]) -> Option<u64> {
    readings.iter().find_map(VramReading::available).map(|free| free / 10 * 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_prefers_the_budget_to_the_total() {
        let empty = VramReading::empty(VramSource::Vulkan);
        assert_eq!(empty.available(), None);
        assert!(!empty.is_known());
        let counted = VramReading { total: Some(100), used: Some(30), ..empty };
        assert_eq!(counted.available(), Some(70));
        assert_eq!(VramReading { budget: Some(50), used_here: Some(60), ..counted }.available(), Some(0));
        let json = serde_json::to_value(VramReading { source: VramSource::Sysfs, ..counted }).unwrap();
        assert_eq!(json["source"], VramSource::Sysfs.name());
        assert_eq!((json["total_bytes"].as_u64(), json["budget_bytes"].as_u64()), (Some(100), None));
    }

    #[test]
    fn budgets_are_the_systems_count_and_no_more_than_the_heap() {
        let gib = 1_u64 << 30;
        let of = |source, total, used, budget| VramReading {
            total: Some(total * gib),
            used: Option::map(used, |it: u64| it * gib),
            used_here: Some(0),
            budget: Option::map(budget, |it: u64| it * gib),
            ..VramReading::empty(source)
        };
        // Intel's Windows driver reports a budget above its heap.
        let lies = in_order([None, None], Some(of(VramSource::Vulkan, 16, None, Some(31))));
        assert_eq!((lies[0].budget, budget(&lies)), (Some(16 * gib), Some(16 * gib / 10 * 9)));
        // On RADV the kernel's count applies, whatever the extension reports.
        let kernel = of(VramSource::Sysfs, 16, Some(6), None);
        let radv = in_order([None, Some(kernel)], Some(of(VramSource::Vulkan, 16, None, Some(16))));
        assert_eq!(budget(&radv), Some(10 * gib / 10 * 9));
        // If the kernel reports only the size, the driver's count applies.
        let sized = of(VramSource::Sysfs, 16, None, None);
        let xe = in_order([None, Some(sized)], Some(of(VramSource::Vulkan, 16, None, Some(12))));
        assert_eq!((xe.len(), budget(&xe)), (2, Some(12 * gib / 10 * 9)));
        assert_eq!(budget(&in_order([None, None], None)), None);
    }
}
