//! Runs one kernel on a hardware or software Vulkan driver.

mod tiles;
pub mod weights;

use std::{
    collections::HashMap,
    sync::{Mutex, OnceLock},
};

use thermocline_shaders::{Access, Kernel, Tier, WeightType};
use wgpu::util::DeviceExt;

/// A device with all tier features that its adapter offers.
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    features: wgpu::Features,
    subgroup: u32,
    pipelines: Mutex<HashMap<String, (wgpu::BindGroupLayout, wgpu::ComputePipeline)>>,
}

/// Inputs of a dispatch.
pub struct Call<'a> {
    pub kernel: &'a str,
    pub tier: Tier,
    pub weights: Option<WeightType>,
    pub overrides: &'a [(&'a str, f64)],
    pub params: &'a [u8],
    /// Storage buffers in the order of their bindings, without the code book of `weights`.
    pub buffers: &'a [&'a [u8]],
    pub workgroups: (u32, u32, u32),
}

impl Gpu {
    /// The device of the first adapter. Test machines always have one, because they install a
    /// software driver.
    pub fn get() -> &'static Gpu {
        static GPU: OnceLock<Gpu> = OnceLock::new();
        GPU.get_or_init(|| {
            let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
            let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
            let adapter = adapters
                .first()
                .expect("no Vulkan driver: install mesa-vulkan-drivers and libvulkan1 (tests/run.sh does)");
            let wanted = wgpu::Features::IMMEDIATES | wgpu::Features::SUBGROUP | wgpu::Features::SHADER_F16;
            let features = adapter.features() & wanted;
            let descriptor = wgpu::DeviceDescriptor {
                required_features: features,
                required_limits: adapter.limits(),
                ..wgpu::DeviceDescriptor::default()
            };
            let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
            Gpu { device, queue, features, subgroup: adapter.get_info().subgroup_max_size, pipelines: Mutex::default() }
        })
    }

    /// Tiers that this adapter can run, always including the portable tier.
    pub fn tiers(&self) -> Vec<Tier> {
        let has = |feature| self.features.contains(feature);
        let fits = |tier: &Tier| {
            (!tier.subgroups || has(wgpu::Features::SUBGROUP)) && (!tier.f16 || has(wgpu::Features::SHADER_F16))
        };
        Tier::ALL.into_iter().filter(fits).collect()
    }

    /// Largest subgroup size, in invocations.
    pub fn subgroup(&self) -> u32 {
        self.subgroup
    }

    /// Runs `call` and returns the contents of buffer `output` as floats.
    pub fn run(&self, call: &Call<'_>, output: usize) -> Vec<f32> {
        let [values] = self.run_for(call, [output]);
        bytemuck::cast_vec(values)
    }

    /// Runs `call` and returns the contents of some of its buffers as words.
    pub fn run_for<const N: usize>(&self, call: &Call<'_>, outputs: [usize; N]) -> [Vec<u32>; N] {
        self.dispatch(call, None, outputs)
    }

    /// Like [`Gpu::run_for`], with a grid stored in a buffer.
    pub fn run_over<const N: usize>(&self, call: &Call<'_>, grid: &[u32], outputs: [usize; N]) -> [Vec<u32>; N] {
        self.dispatch(call, Some(grid), outputs)
    }

    /// The pipeline of a kernel in one tier, for one choice of overrides. Each text is compiled
    /// once.
    fn pipeline(&self, call: &Call<'_>) -> (wgpu::BindGroupLayout, wgpu::ComputePipeline) {
        let kernel = Kernel::named(call.kernel).unwrap();
        let source = tiles::in_plain_text(&mutated(kernel, kernel.source(call.tier, call.weights).unwrap()));
        let key = format!("{:?}\n{source}", call.overrides);
        if let Some(made) = self.pipelines.lock().unwrap().get(&key) {
            return made.clone();
        }
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(call.kernel),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let entries: Vec<wgpu::BindGroupLayoutEntry> = kernel
            .bindings_of(call.weights)
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
            self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: kernel.params_bytes,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(call.kernel),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(call.kernel),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: call.overrides,
                // As in the engine, because kernels write shared memory before they read it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        self.pipelines.lock().unwrap().insert(key, (layout.clone(), pipeline.clone()));
        (layout, pipeline)
    }

    fn dispatch<const N: usize>(&self, call: &Call<'_>, grid: Option<&[u32]>, outputs: [usize; N]) -> [Vec<u32>; N] {
        let (layout, pipeline) = self.pipeline(call);
        let code_book = call.weights.and_then(WeightType::code_book).map(bytemuck::cast_slice);
        let buffers: Vec<wgpu::Buffer> = call
            .buffers
            .iter()
            .copied()
            .chain(code_book)
            .map(|contents| {
                self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                    label: None,
                    contents,
                    usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                })
            })
            .collect();
        let kernel = Kernel::named(call.kernel).unwrap();
        let entries: Vec<wgpu::BindGroupEntry<'_>> = kernel
            .bindings_of(call.weights)
            .zip(&buffers)
            .map(|((binding, _), buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &layout,
            entries: &entries,
        });
        let staging = outputs.map(|output| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: buffers[output].size(),
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        let grid = grid.map(|grid| {
            self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                label: None,
                contents: bytemuck::cast_slice(grid),
                usage: wgpu::BufferUsages::INDIRECT,
            })
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.set_immediates(0, call.params);
            match &grid {
                Some(grid) => pass.dispatch_workgroups_indirect(grid, 0),
                None => {
                    let (x, y, z) = call.workgroups;
                    pass.dispatch_workgroups(x, y, z);
                }
            }
        }
        for (output, staging) in outputs.iter().zip(&staging) {
            encoder.copy_buffer_to_buffer(&buffers[*output], 0, staging, 0, staging.size());
        }
        self.queue.submit([encoder.finish()]);
        for staging in &staging {
            staging.slice(..).map_async(wgpu::MapMode::Read, Result::unwrap);
        }
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        staging.map(|staging| bytemuck::pod_collect_to_vec(&staging.slice(..).get_mapped_range().unwrap()))
    }
}

/// Deterministic noise in (-1, 1).
pub fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Floats as bytes of a buffer.
pub fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Compares floats with expected values. The tolerance is relative for values above one.
pub fn assert_close(got: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= tolerance * (1.0 + expected.abs()), "{what}: element {i} is {got}, expected {expected}");
    }
}

/// `f(gate) * up`, or `f(gate)` without `up`. `KIND` selects `f`.
pub fn activation(kind: u32, gate: f64, up: Option<f64>) -> f64 {
    let f = match kind {
        1 => gate.max(0.0).powi(2),
        2 => gate / (1.0 + (-gate).exp()),
        3 => 0.5 * gate * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3))).tanh()),
        4 => 0.5 * gate * (1.0 + libm::erf(gate / 2.0_f64.sqrt())),
        6 => gate.min(7.0) / (1.0 + (-1.702 * gate.min(7.0)).exp()),
        _ => gate.max(0.0),
    };
    f * up.map_or(1.0, |up| match kind {
        5 => up.max(0.0),
        6 => up.clamp(-7.0, 7.0) + 1.0,
        _ => up,
    })
}

/// [`activation`] with a `limit` above 0: `f` is at most `limit`, and up values are between
/// `-limit` and `limit`.
pub fn limited_activation(kind: u32, limit: f64, gate: f64, up: Option<f64>) -> f64 {
    if limit <= 0.0 {
        return activation(kind, gate, up);
    }
    let factor = up.map_or(1.0, |up| match kind {
        5 => up.clamp(0.0, limit),
        6 => up.clamp(-limit.min(7.0), limit.min(7.0)) + 1.0,
        _ => up.clamp(-limit, limit),
    });
    activation(kind, gate, None).min(limit) * factor
}

/// Applies the change in the environment variable `MUTATION` to a kernel's text: the kernel, a
/// piece of its text and its replacement, separated by tabs. `tests/mutate_shaders.sh` checks that
/// the tests of every kernel detect such a change.
fn mutated(kernel: &Kernel, source: String) -> String {
    let Ok(mutation) = std::env::var("MUTATION") else { return source };
    let parts: Vec<_> = mutation.split('\t').collect();
    let [name, from, to] = parts[..] else {
        panic!("MUTATION is KERNEL, FROM and TO with tabs between, not {mutation:?}")
    };
    if name != kernel.name {
        return source;
    }
    println!("mutated {name}: {} places", source.matches(from).count());
    source.replace(from, to)
}
