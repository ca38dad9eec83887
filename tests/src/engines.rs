//! Engines whose answers do not depend on the processor.

use thermocline_engine::{
    cpu::{CpuOptions, InputPrecision, Isa},
    runtime::KvType,
    session::{DeviceChoice, EngineOptions, SparsityChoice},
};

/// Options for one thread, float activations as a GPU has them, and an F32 KV cache. CPU and GPU
/// then compute the same.
pub fn alike(sparsity: SparsityChoice, device: DeviceChoice) -> EngineOptions {
    EngineOptions {
        context: Some(96),
        kv_type: KvType::F32,
        cpu: CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), activations: InputPrecision::Float },
        chunk: 16,
        device,
        sparsity,
        ..EngineOptions::default()
    }
}
