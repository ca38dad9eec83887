//! What wgpu has no safe way to do: the one file of the GPU side with `unsafe` in it. Nothing here changes anything behind
//! wgpu's back: it reads what drivers say of memory, gives a driver back the kernels it once
//! compiled, and leaves out checks of shaders.
#![allow(unsafe_code)]

use super::vram::VramReading;

/// What the graphics driver says about the memory of `adapter`.
#[cfg(not(any(windows, target_vendor = "apple")))]
pub(super) fn driver_memory(adapter: &wgpu::Adapter) -> Option<VramReading> {
    vulkan(adapter)
}

/// What the graphics driver says about the memory of `adapter`.
#[cfg(windows)]
pub(super) fn driver_memory(adapter: &wgpu::Adapter) -> Option<VramReading> {
    vulkan(adapter).or_else(|| dxgi(adapter))
}

/// Heaps and their budgets, as Vulkan tells them: of the largest heap on the device's side.
#[cfg(not(target_vendor = "apple"))]
fn vulkan(adapter: &wgpu::Adapter) -> Option<VramReading> {
    use ash::{ext, vk};

    // SAFETY: the adapter's handles are only read, and are not used after the guard that keeps them.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = adapter.shared_instance();
    if instance.instance_api_version() < vk::API_VERSION_1_1 {
        return None;
    }
    let (instance, device) = (instance.raw_instance(), adapter.raw_physical_device());
    // SAFETY: `device` is a physical device of `instance`, which the guard keeps alive.
    let extensions = unsafe { instance.enumerate_device_extension_properties(device) }.ok()?;
    let told = extensions.iter().any(|it| it.extension_name_as_c_str() == Ok(ext::memory_budget::NAME));
    let mut budgets = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default();
    if told {
        memory = memory.push_next(&mut budgets);
    }
    // SAFETY: as above; the chain holds structures the device knows, all alive during the call, and the function is there
    // since Vulkan 1.1.
    unsafe { instance.get_physical_device_memory_properties2(device, &mut memory) };
    let properties = memory.memory_properties;
    let heaps = properties.memory_heaps.iter().take(properties.memory_heap_count as usize).enumerate();
    let local = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let (at, heap) = local.max_by_key(|(_, heap)| heap.size)?;
    Some(VramReading {
        total: Some(heap.size),
        used_here: told.then_some(budgets.heap_usage[at]),
        budget: told.then_some(budgets.heap_budget[at]),
        ..VramReading::nothing(super::VramSource::Vulkan)
    })
}

/// Memory of the adapter's own, or its share of the machine's if it has none, as Windows counts it.
#[cfg(windows)]
fn dxgi(adapter: &wgpu::Adapter) -> Option<VramReading> {
    use windows::Win32::Graphics::Dxgi::{DXGI_MEMORY_SEGMENT_GROUP_LOCAL, DXGI_QUERY_VIDEO_MEMORY_INFO};

    // SAFETY: the adapter is only asked, and not used after the guard that keeps it.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    let adapter = adapter.raw_adapter();
    // SAFETY: `adapter` is a live COM object.
    let description = unsafe { adapter.GetDesc2() }.ok()?;
    let mut memory = DXGI_QUERY_VIDEO_MEMORY_INFO::default();
    // SAFETY: as above; `memory` is of the type the call fills.
    unsafe { adapter.QueryVideoMemoryInfo(0, DXGI_MEMORY_SEGMENT_GROUP_LOCAL, &mut memory) }.ok()?;
    let total = match description.DedicatedVideoMemory {
        // An integrated adapter sets aside less than it needs for itself.
        small if small < 1 << 30 => description.SharedSystemMemory.max(small),
        own => own,
    };
    Some(VramReading {
        total: Some(total as u64),
        used_here: Some(memory.CurrentUsage),
        budget: Some(memory.Budget),
        ..VramReading::nothing(super::VramSource::Dxgi)
    })
}

/// What the graphics driver says about the memory of `adapter`: on Apple's machines the share of the machine's memory the GPU
/// works well with.
#[cfg(target_vendor = "apple")]
pub(super) fn driver_memory(adapter: &wgpu::Adapter) -> Option<VramReading> {
    use objc2_metal::MTLDevice as _;

    // SAFETY: the device is only asked, and not used after the guard that keeps it.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = adapter.raw_device();
    let most = device.recommendedMaxWorkingSetSize();
    Some(VramReading {
        total: Some(most),
        used_here: Some(device.currentAllocatedSize() as u64),
        budget: Some(most),
        ..VramReading::nothing(super::VramSource::Metal)
    })
}

/// A module of a kernel of ours. Buffers stay checked; loops are not counted and divisors not compared with zero, which
/// would keep compilers from unrolling the loops that keep sums in registers.
pub(super) fn shader_module(device: &wgpu::Device, name: &str, source: String) -> wgpu::ShaderModule {
    let descriptor =
        wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(source.into()) };
    let mut checks = wgpu::ShaderRuntimeChecks::checked();
    checks.force_loop_bounding = false;
    checks.int_div_checks = false;
    // SAFETY: the text is one of the shaders crate's kernels. Their loops count up to a parameter or down to zero, and they
    // divide by constants and by parameters that are not zero.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}

/// A cache of compiled pipelines with `data` in it, or an empty one.
pub(super) fn pipeline_cache(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("thermocline"), data, fallback: true };
    // SAFETY: `data` comes from a file of this user's that only `PipelineCache::store` writes, under the adapter's key, with
    // bytes that wgpu's `get_data` returned; a checksum has shown that they are whole, and wgpu and the driver check their own
    // headers and begin with an empty cache if they do not fit.
    unsafe { device.create_pipeline_cache(&descriptor) }
}

/// wgpu's consent to experimental features, if any are wanted.
pub(super) fn experimental_features(wanted: bool) -> wgpu::ExperimentalFeatures {
    if wanted {
        // SAFETY: the one experimental feature asked for is cooperative matrices. The kernel that uses them stays within its
        // arrays and calls them in uniform control flow, and is only used once it has proved itself.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    }
}
