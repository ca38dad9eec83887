//! Memory of an NVIDIA card, from its management library. The library is part of the driver and is
//! loaded at run time.

use super::VramReading;

#[cfg(target_os = "macos")]
pub(super) fn read(_pci: &str) -> Option<VramReading> {
    None
}

#[cfg(not(target_os = "macos"))]
pub(super) fn read(pci: &str) -> Option<VramReading> {
    use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory};

    use super::VramSource;

    // Loading takes a moment, and its outcome does not change while the program runs.
    static NVML: std::sync::LazyLock<Option<Nvml>> = std::sync::LazyLock::new(|| {
        // Only the development package contains the name without a version.
        let versioned = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init();
        versioned.or_else(|_| Nvml::init()).ok()
    });
    if pci.is_empty() {
        return None;
    }
    let device = NVML.as_ref()?.device_by_pci_bus_id(pci).ok()?;
    let memory = device.memory_info().ok()?;
    let compute = device.running_compute_processes().unwrap_or_default();
    let graphics = device.running_graphics_processes().unwrap_or_default();
    let mine = compute.into_iter().chain(graphics).find(|process| process.pid == std::process::id());
    let used_here = mine.and_then(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    });
    Some(VramReading {
        total: Some(memory.total),
        used: Some(memory.used),
        used_here,
        ..VramReading::empty(VramSource::Nvml)
    })
}
