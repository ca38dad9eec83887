//! Readings of an adapter's memory from its graphics driver, through wgpu's handles. Read-only.
#![allow(unsafe_code)]

use super::{VramReading, VramSource};

/// Returns the graphics driver's reading of the memory of `adapter`.
#[cfg(not(any(windows, target_vendor = "apple")))]
pub(super) fn read(adapter: &wgpu::Adapter, unified: bool) -> Option<VramReading> {
    vulkan(adapter, unified)
}

/// Returns the graphics driver's reading of the memory of `adapter`.
#[cfg(windows)]
pub(super) fn read(adapter: &wgpu::Adapter, unified: bool) -> Option<VramReading> {
    vulkan(adapter, unified).or_else(|| dxgi(adapter))
}

/// Returns Vulkan's reading of the device's heaps and their budgets.
#[cfg(not(target_vendor = "apple"))]
fn vulkan(adapter: &wgpu::Adapter, unified: bool) -> Option<VramReading> {
    use ash::{ext, vk};

    // SAFETY: the adapter's handles are only read, and are not used after their guard is dropped.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = adapter.shared_instance();
    if instance.instance_api_version() < vk::API_VERSION_1_1 {
        return None;
    }
    let (instance, device) = (instance.raw_instance(), adapter.raw_physical_device());
    // SAFETY: `device` is a physical device of `instance`, which the guard keeps alive.
    let extensions = unsafe { instance.enumerate_device_extension_properties(device) }.ok()?;
    let has_budgets = extensions.iter().any(|it| it.extension_name_as_c_str() == Ok(ext::memory_budget::NAME));
    let mut budgets = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budgets {
        memory = memory.push_next(&mut budgets);
    }
    // SAFETY: as above. The chain holds structures that the device supports, all alive during the
    // call. The function exists since Vulkan 1.1.
    unsafe { instance.get_physical_device_memory_properties2(device, &mut memory) };
    let properties = memory.memory_properties;
    let heaps = properties.memory_heaps.iter().take(properties.memory_heap_count as usize).enumerate();
    let heaps = heaps.map(|(at, heap)| Heap {
        local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
        size: heap.size,
        used_here: has_budgets.then_some(budgets.heap_usage[at]),
        budget: has_budgets.then_some(budgets.heap_budget[at]),
    });
    of_heaps(&heaps.collect::<Vec<_>>(), unified)
}

/// A memory heap, in bytes.
#[cfg(any(not(target_vendor = "apple"), test))]
#[derive(Debug, Clone, Copy)]
struct Heap {
    /// True if the heap is the device's local memory.
    local: bool,
    size: u64,
    used_here: Option<u64>,
    budget: Option<u64>,
}

/// Returns the reading of an adapter's heaps. If memory is `unified`, the reading is the sum of all
/// local heaps, because a driver may divide them (Strix Halo: 32 and 64 GB). If an integrated
/// adapter reserves too little memory for itself, the shared heaps count instead, as in [`usable`].
/// For a card, the reading is its largest local heap. Its other local heap is a window through
/// which the CPU sees the same memory. A budget is at most its heap's size.
#[cfg(any(not(target_vendor = "apple"), test))]
fn of_heaps(heaps: &[Heap], unified: bool) -> Option<VramReading> {
    let (local, shared): (Vec<Heap>, Vec<Heap>) = heaps.iter().copied().partition(|heap| heap.local);
    let size = |heaps: &[Heap]| heaps.iter().map(|heap| heap.size).fold(0, u64::saturating_add);
    let largest = local.iter().max_by_key(|heap| heap.size)?;
    let counted = match unified {
        false => std::slice::from_ref(largest),
        true if usable(size(&local), size(&shared)) > size(&local) => &shared,
        true => &local,
    };
    let sum = |what: fn(&Heap) -> Option<u64>| counted.iter().map(what).sum::<Option<u64>>();
    Some(VramReading {
        total: sum(|heap| Some(heap.size)),
        used_here: sum(|heap| heap.used_here),
        budget: sum(|heap| heap.budget.map(|budget| budget.min(heap.size))),
        ..VramReading::empty(VramSource::Vulkan)
    })
}

/// Returns Windows' reading: the adapter's dedicated memory, or the shared memory that it may use
/// if it has none.
#[cfg(windows)]
fn dxgi(adapter: &wgpu::Adapter) -> Option<VramReading> {
    use windows::Win32::Graphics::Dxgi::{DXGI_MEMORY_SEGMENT_GROUP_LOCAL, DXGI_QUERY_VIDEO_MEMORY_INFO};

    // SAFETY: the adapter is only read, and is not used after its guard is dropped.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    let adapter = adapter.raw_adapter();
    // SAFETY: `adapter` is a live COM object.
    let description = unsafe { adapter.GetDesc2() }.ok()?;
    let mut memory = DXGI_QUERY_VIDEO_MEMORY_INFO::default();
    // SAFETY: as above; `memory` has the type that the call fills.
    unsafe { adapter.QueryVideoMemoryInfo(0, DXGI_MEMORY_SEGMENT_GROUP_LOCAL, &mut memory) }.ok()?;
    let total = usable(description.DedicatedVideoMemory as u64, description.SharedSystemMemory as u64);
    Some(VramReading {
        total: Some(total),
        used_here: Some(memory.CurrentUsage),
        budget: Some(memory.Budget),
        ..VramReading::empty(VramSource::Dxgi)
    })
}

/// Returns the bytes that an adapter can use. `dedicated` bytes are its own, `shared` bytes belong
/// to the machine. Integrated adapters reserve less than 1 GiB and use shared memory.
#[cfg(any(not(target_vendor = "apple"), test))]
fn usable(dedicated: u64, shared: u64) -> u64 {
    if dedicated < 1 << 30 { shared.max(dedicated) } else { dedicated }
}

/// Returns the graphics driver's reading of the memory of `adapter`. On Apple machines it is the
/// recommended working set, a part of the machine's memory.
#[cfg(target_vendor = "apple")]
pub(super) fn read(adapter: &wgpu::Adapter, _unified: bool) -> Option<VramReading> {
    use objc2_metal::MTLDevice as _;

    // SAFETY: the device is only read, and is not used after its guard is dropped.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = adapter.raw_device();
    let most = device.recommendedMaxWorkingSetSize();
    Some(VramReading {
        total: Some(most),
        used_here: Some(device.currentAllocatedSize() as u64),
        budget: Some(most),
        ..VramReading::empty(VramSource::Metal)
    })
}

#[cfg(test)]
mod tests {
    use super::{Heap, of_heaps, usable};

    #[test]
    fn heaps_of_unified_memory_are_added_up() {
        let gib = 1_u64 << 30;
        let heap = |size: u64, used: u64, budget: u64| Heap {
            local: true,
            size: size * gib,
            used_here: Some(used * gib),
            budget: Some(budget * gib),
        };
        // Strix Halo: the budget of the second heap exceeds its size.
        let halo = [heap(32, 1, 30), heap(64, 2, 90)];
        let together = of_heaps(&halo, true).unwrap();
        assert_eq!(
            (together.total, together.used_here, together.budget),
            (Some(96 * gib), Some(3 * gib), Some(94 * gib))
        );
        // A card's memory, and the CPU's window into it.
        let card = of_heaps(&[heap(16, 1, 15), heap(1, 0, 1)], false).unwrap();
        assert_eq!((card.total, card.used_here, card.budget), (Some(16 * gib), Some(gib), Some(15 * gib)));
        let untold = [Heap { local: true, size: gib, used_here: None, budget: None }; 2];
        let untold = of_heaps(&untold, true).unwrap();
        assert_eq!((untold.total, untold.used_here, untold.budget), (Some(2 * gib), None, None));
        assert_eq!(of_heaps(&[], true), None);
    }

    #[test]
    fn integrated_adapters_with_little_memory_work_in_the_machines() {
        let mib = 1_u64 << 20;
        let heap = |local: bool, size: u64, budget: u64| Heap {
            local,
            size: size * mib,
            used_here: Some(mib),
            budget: Some(budget * mib),
        };
        let little = [heap(true, 512, 460), heap(false, 8192, 7000)];
        let counted = |heaps: &[Heap], unified| of_heaps(heaps, unified).unwrap().budget.map(|bytes| bytes / mib);
        assert_eq!(counted(&little, true), Some(7000));
        // A card never counts the machine's memory, and neither does an adapter with enough
        // dedicated memory.
        assert_eq!(counted(&little, false), Some(460));
        assert_eq!(counted(&[heap(true, 4096, 4000), heap(false, 8192, 7000)], true), Some(4000));
    }

    #[test]
    fn integrated_adapters_have_the_part_of_the_machines_memory_they_may_use() {
        let (mib, gib) = (1 << 20, 1 << 30);
        assert_eq!(usable(128 * mib, 8 * gib), 8 * gib);
        assert_eq!(usable(0, 8 * gib), 8 * gib);
        // A card counts none of the machine's memory.
        assert_eq!(usable(4 * gib, 16 * gib), 4 * gib);
        assert_eq!(usable(512 * mib, 0), 512 * mib);
    }
}
