//! The processor of a benchmark, and its description in records.

use super::limit::LimitProbe;
use thermocline_cpu::ThreadPool;
use thermocline_gpu::Gpu;
use thermocline_lab::calibration::GpuSpeed;
use thermocline_model::{Model, PredictorKind};
use thermocline_run::placement::{Granularity, SplitReport};

/// A processor with its measured speed.
pub(super) enum BenchDevice {
    Cpu { pool: ThreadPool, isa: String, limits: LimitProbe },
    Gpu { gpu: Gpu, speed: GpuSpeed, placed: Option<PlacedModel> },
}

/// The placement of a model, as records describe it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PlacedModel {
    pub granularity: Granularity,
    /// Number of CPU threads.
    pub threads: usize,
    /// Number of layers whose attention is on the GPU.
    pub layers: usize,
    /// Fraction of all neurons that are on the GPU.
    pub hot: f64,
    /// How much of a requested split was placed; `None` without a split.
    pub split: Option<SplitReport>,
}

/// The description of a device in records.
#[derive(Default)]
pub(super) struct DeviceDescription {
    pub backend: String,
    pub gpu: String,
    pub threads: usize,
    pub kernels: String,
    /// Weight types whose products for one token round activations to 8 bits.
    pub rounding_types: String,
    pub layers: i32,
    pub hot_fraction: f64,
    pub vram_budget: u64,
    pub vram_used: u64,
    pub read_bandwidth: f64,
    pub copy_bandwidth: Option<f64>,
    pub placed: Option<PlacedModel>,
}

impl BenchDevice {
    pub fn described(&self, n_layer: usize) -> DeviceDescription {
        match self {
            // The read bandwidth is measured with each repetition instead.
            BenchDevice::Cpu { pool, isa, .. } => DeviceDescription {
                backend: "CPU".to_owned(),
                threads: pool.threads(),
                kernels: isa.clone(),
                ..DeviceDescription::default()
            },
            BenchDevice::Gpu { gpu, speed, placed } => DeviceDescription {
                backend: backend_name(&gpu.report().backend),
                gpu: gpu.report().name.clone(),
                // The CPU computes only the embedding lookup.
                threads: placed.map_or(1, |placed| placed.threads),
                kernels: gpu.caps().tier.to_string(),
                rounding_types: gpu.rounding_types().iter().map(|ty| ty.name()).collect::<Vec<_>>().join(", "),
                layers: placed.map_or(n_layer, |placed| placed.layers) as i32,
                hot_fraction: placed.map_or(1.0, |placed| placed.hot),
                vram_budget: gpu.arena().budget(),
                vram_used: gpu.arena().used(),
                read_bandwidth: speed.read_bytes_per_second,
                copy_bandwidth: Some(speed.copy_bytes_per_second),
                placed: *placed,
            },
        }
    }
}

/// The backend's name as llama-bench writes it.
fn backend_name(backend: &str) -> String {
    match backend {
        "vulkan" => "Vulkan",
        "metal" => "Metal",
        "dx12" => "DX12",
        other => other,
    }
    .to_owned()
}

/// `llama 7B Q4_0`: architecture, size and the weight type with the most bytes.
pub(super) fn model_type(model: &Model, params: usize) -> String {
    let mut bytes = std::collections::BTreeMap::new();
    for tensor in model.checkpoint.tensors() {
        *bytes.entry(tensor.ty).or_insert(0) += tensor.data.len();
    }
    let ty = bytes.iter().max_by_key(|(_, bytes)| **bytes).map_or(String::new(), |(ty, _)| ty.to_string());
    let size = match params as f64 {
        p if p >= 1e9 => format!("{:.1}B", p / 1e9),
        p => format!("{:.1}M", p / 1e6),
    };
    format!("{} {size} {ty}", model.config.architecture)
}

/// The kind of the model's predictors, if it has any.
pub(super) fn predictor_kind(model: &Model) -> Option<String> {
    let predictor = model.weights.layers.iter().find_map(|layer| layer.predictor.as_ref())?;
    Some(match predictor.kind {
        PredictorKind::LowRank { .. } => "low-rank".to_owned(),
        PredictorKind::Rows { .. } => "rows".to_owned(),
    })
}
