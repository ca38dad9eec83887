//! What computes in a benchmark, and what its records say of that.

use super::{limit::LimitProbe, placed::Where};
use crate::{
    cpu::ThreadPool,
    gpu::Gpu,
    model::{Model, PredictorKind},
    sparsity::measure::GpuSpeed,
};

/// What computes, and what it was measured to move.
pub(super) enum Device {
    Cpu { pool: ThreadPool, isa: String, limits: LimitProbe },
    Gpu { gpu: Gpu, speed: GpuSpeed, placed: Option<Where> },
}

/// What a record says of the device.
pub(super) struct Described {
    pub backend: String,
    pub gpu: String,
    pub threads: usize,
    pub kernels: String,
    pub layers: i32,
    pub hot_fraction: f64,
    pub vram_budget: u64,
    pub vram_used: u64,
    pub read_bandwidth: f64,
    pub copy_bandwidth: Option<f64>,
    pub placed: Option<Where>,
}

impl Device {
    pub fn described(&self, n_layer: usize) -> Described {
        match self {
            Device::Cpu { pool, isa, .. } => Described {
                backend: "CPU".to_owned(),
                gpu: String::new(),
                threads: pool.threads(),
                kernels: isa.clone(),
                layers: 0,
                hot_fraction: 0.0,
                vram_budget: 0,
                vram_used: 0,
                // Measured with each repetition.
                read_bandwidth: 0.0,
                copy_bandwidth: None,
                placed: None,
            },
            Device::Gpu { gpu, speed, placed } => Described {
                backend: backend_name(&gpu.report().backend),
                gpu: gpu.report().name.clone(),
                // Only one records where the embedding's row is all the CPU computes.
                threads: placed.map_or(1, |at| at.threads),
                kernels: gpu.caps().tier.to_string(),
                layers: placed.map_or(n_layer, |at| at.layers) as i32,
                hot_fraction: placed.map_or(1.0, |at| at.hot),
                vram_budget: gpu.arena().budget(),
                vram_used: gpu.arena().used(),
                read_bandwidth: speed.read_bytes_per_second,
                copy_bandwidth: Some(speed.copy_bytes_per_second),
                placed: *placed,
            },
        }
    }
}

/// As llama-bench writes it.
fn backend_name(backend: &str) -> String {
    match backend {
        "vulkan" => "Vulkan",
        "metal" => "Metal",
        "dx12" => "DX12",
        other => other,
    }
    .to_owned()
}

/// `llama 7B Q4_0`: architecture, size, the weight type most bytes have.
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
