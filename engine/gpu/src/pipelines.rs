//! Compiled kernels. Each variant is compiled once.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use thermocline_shaders::{Access, Kernel, WeightType};

use super::{
    Caps, CreationLock, FaultPoint, KernelMutation,
    pipeline_cache::PipelineCache,
    raw,
    trust::{FaultCounter, Health},
};
use thermocline_base::error::{Result, first_line, root_cause};

/// A compiled kernel.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) kernel: &'static Kernel,
    /// Weight type that the kernel reads.
    pub(super) weights: Option<WeightType>,
    workgroup: u32,
    overrides: Vec<(&'static str, f64)>,
    /// `None` on a device that only counts.
    pub(super) compiled: Option<CompiledKernel>,
}

/// The driver's objects of a compiled kernel.
#[derive(Debug)]
pub(super) struct CompiledKernel {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

impl Pipeline {
    /// Returns the invocations in a workgroup.
    pub fn workgroup(&self) -> u32 {
        self.workgroup
    }

    /// Returns the value of an override, if it was set.
    pub fn overridden(&self, name: &str) -> Option<f64> {
        self.overrides.iter().find(|(its, _)| *its == name).map(|(_, value)| *value)
    }
}

/// Kernel, weight type, and overrides (bits of their values).
type VariantKey = (&'static str, Option<WeightType>, Vec<(&'static str, u64)>);

/// All compiled variants.
#[derive(Debug)]
pub struct Pipelines {
    /// `None`: nothing is compiled.
    device: Option<wgpu::Device>,
    health: Health,
    caps: Caps,
    made: Mutex<HashMap<VariantKey, Arc<Pipeline>>>,
    cache: Option<PipelineCache>,
    faults: FaultCounter,
    /// Kinds of kernels compiled so far: cooperative or not, packed or not.
    known: Mutex<Vec<[bool; 2]>>,
    mutation: Option<KernelMutation>,
    /// True if kernels were compiled since the cache was stored.
    fresh: AtomicBool,
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        self.store();
    }
}

impl Pipelines {
    pub(super) fn new(
        device: Option<wgpu::Device>,
        health: Health,
        caps: Caps,
        cache: Option<PipelineCache>,
        faults: FaultCounter,
        mutation: Option<KernelMutation>,
    ) -> Self {
        let (made, known, fresh) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Pipelines { device, health, caps, made, cache, faults, known, mutation, fresh }
    }

    /// Limits the kernels to the tier of `caps` from now on.
    pub(super) fn narrow(&mut self, caps: Caps) {
        self.caps = caps;
        self.made.get_mut().clear();
        self.known.get_mut().clear();
    }

    /// Returns the simulated change of a kernel, if any.
    pub fn mutation(&self) -> Option<&KernelMutation> {
        self.mutation.as_ref()
    }

    /// Writes the cache on disk, if there is one and kernels were compiled since. Closing the
    /// device also does this.
    pub fn store(&self) {
        if let Some(cache) = &self.cache
            && self.health.check().is_ok()
            && self.fresh.swap(false, Relaxed)
        {
            cache.store();
        }
    }

    /// Returns the variant of kernel `name` for `weights` with these overrides. The first call
    /// compiles it. `workgroup` is the wanted size of a workgroup, which is narrowed to the
    /// device's limit.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Gpu`] if the driver cannot compile the kernel or the
    /// device is lost.
    pub fn get(
        &self,
        name: &'static str,
        weights: Option<WeightType>,
        workgroup: u32,
        overrides: &[(&'static str, f64)],
    ) -> Result<Arc<Pipeline>> {
        self.health.check()?;
        let workgroup = workgroup.min(self.caps.max_workgroup);
        let bits = overrides.iter().map(|(name, value)| (*name, value.to_bits()));
        let key = (name, weights, bits.chain([("WORKGROUP_SIZE", u64::from(workgroup))]).collect());
        let mut made = self.made.lock();
        if let Some(pipeline) = made.get(&key) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = Arc::new(self.make(name, weights, workgroup, overrides)?);
        made.insert(key, Arc::clone(&pipeline));
        self.fresh.store(true, Relaxed);
        Ok(pipeline)
    }

    fn make(
        &self,
        name: &'static str,
        weights: Option<WeightType>,
        workgroup: u32,
        overrides: &[(&'static str, f64)],
    ) -> Result<Pipeline> {
        let kernel = Kernel::named(name).ok_or_else(|| self.health.error(format!("there is no kernel `{name}`")))?;
        let kind = [kernel.cooperative, kernel.packed];
        let is_first = self.device.is_some() && !self.known.lock().contains(&kind);
        let uses = || kernel.features(self.caps.tier, weights);
        let sentinel = is_first.then(|| self.health.guard_kernel(name, uses(), &self.faults)).flatten();
        let compiled = self.device.as_ref().map(|device| self.compile(device, kernel, weights, workgroup, overrides));
        drop(sentinel);
        if is_first {
            self.known.lock().push(kind);
        }
        Ok(Pipeline { kernel, weights, workgroup, overrides: overrides.to_vec(), compiled: compiled.transpose()? })
    }

    fn compile(
        &self,
        device: &wgpu::Device,
        kernel: &'static Kernel,
        weights: Option<WeightType>,
        workgroup: u32,
        overrides: &[(&'static str, f64)],
    ) -> Result<CompiledKernel> {
        let name = kernel.name;
        let source = kernel.source(self.caps.tier, weights).map_err(|error| self.health.error(first_line(&error)))?;
        let source = match &self.mutation {
            Some(mutation) => mutation.apply(name, source),
            None => source,
        };
        if self.faults.at(FaultPoint::CompileLost) {
            device.destroy();
            // Polling runs the callback. Its result does not matter, because the device is lost.
            let _ = device.poll(wgpu::PollType::Poll);
        }
        // Source that no compiler accepts.
        let source = if self.faults.at(FaultPoint::Compile) { format!("{source}\n(") } else { source };
        let lock = CreationLock::take();
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let module = raw::shader_module(device, name, source);
        let entries: Vec<wgpu::BindGroupLayoutEntry> = kernel
            .bindings_of(weights)
            .map(|(binding, access)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: access == Access::Read },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(name), entries: &entries });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: kernel.params_bytes,
        });
        let constants: Vec<(&str, f64)> =
            overrides.iter().copied().chain([("WORKGROUP_SIZE", f64::from(workgroup))]).collect();
        let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(name),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Every kernel writes workgroup memory before reading it.
                zero_initialize_workgroup_memory: false,
            },
            cache: self.cache.as_ref().map(PipelineCache::raw),
        });
        drop(lock);
        let errors = [internal, scope].map(|scope| pollster::block_on(scope.pop()));
        let error = errors.into_iter().flatten().next();
        let why = match (self.health.reason(), error) {
            // A crash inside the driver also loses the device.
            (Some(reason), _) => format!("the device was lost while the kernel `{name}` was compiled: {reason}"),
            (None, Some(error)) => {
                tracing::warn!(kernel = name, %error, "the driver refused a kernel");
                format!("the kernel `{name}` does not compile: {}", root_cause(&error))
            }
            (None, None) => return Ok(CompiledKernel { raw, layout }),
        };
        Err(self.health.refused(name, kernel.features(self.caps.tier, weights), &why))
    }
}
