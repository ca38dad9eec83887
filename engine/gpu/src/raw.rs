//! Calls for which wgpu has no safe way: compiled kernels given back to a driver, shaders without checks, experimental features.
//! With `vram/driver.rs` all `unsafe` of the GPU side; nothing here changes anything behind wgpu's back.
#![allow(unsafe_code)]

/// Module of one of the shaders crate's kernels. Buffers stay checked; loops are not counted and divisors not compared with zero, which
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
