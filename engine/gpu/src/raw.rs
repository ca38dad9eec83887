//! Calls that wgpu offers only as unsafe: loading compiled kernels into a driver, shaders without
//! checks, experimental features. With `vram/driver.rs`, this is all `unsafe` of the GPU code.
//! Nothing here bypasses wgpu's state.
#![allow(unsafe_code)]

/// Creates the module of a kernel of the shaders crate. Buffer accesses stay checked. Loops get no
/// iteration limit and divisors no zero check, because these prevent compilers from unrolling the
/// loops that keep sums in registers.
pub(super) fn shader_module(device: &wgpu::Device, name: &str, source: String) -> wgpu::ShaderModule {
    let descriptor =
        wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(source.into()) };
    // SAFETY: the source is a kernel of the shaders crate. Its loops count up to a parameter or
    // down to zero. It divides by constants and by parameters that are not zero.
    unsafe { device.create_shader_module_trusted(descriptor, runtime_checks()) }
}

/// Returns the checks that wgpu adds to kernels.
fn runtime_checks() -> wgpu::ShaderRuntimeChecks {
    let mut checks = wgpu::ShaderRuntimeChecks::checked();
    checks.force_loop_bounding = false;
    checks.int_div_checks = false;
    checks
}

/// Creates a cache of compiled pipelines that contains `data`, or an empty cache.
pub(super) fn pipeline_cache(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("thermocline"), data, fallback: true };
    // SAFETY: `data` comes from a file of this user that only `PipelineCache::store` writes, under
    // the adapter's key. It holds bytes that wgpu's `get_data` returned, and a checksum has shown
    // that they are complete. wgpu and the driver check their own headers and start with an empty
    // cache if the headers do not match.
    unsafe { device.create_pipeline_cache(&descriptor) }
}

/// Enables wgpu's experimental features if `wanted`.
pub(super) fn experimental_features(wanted: bool) -> wgpu::ExperimentalFeatures {
    if wanted {
        // SAFETY: cooperative matrices are the only experimental feature in use. The kernel that
        // uses them stays within its arrays and calls them in uniform control flow. It is used only
        // after it has passed a test.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    }
}

#[cfg(test)]
mod tests {
    /// A counter in every loop has slowed kernels on Metal by a hundred times (wgpu issue 7698).
    #[test]
    fn kernels_have_checks_of_buffers_and_no_loop_counters() {
        let checks = super::runtime_checks();
        assert!(checks.bounds_checks && !checks.force_loop_bounding && !checks.int_div_checks);
    }
}
