//! Property of the reader of PowerInfer's index, on raw bytes (the corpus begins with real files).
//! The result is a split or an error, and in a split the two tables of each layer agree.

use std::path::Path;

use thermocline_engine::format::{Bytes, gguf::from_bytes, powerinfer::GpuIndex};

/// Checks the property on one input.
pub fn check(input: &[u8]) {
    let Ok(file) = from_bytes(Path::new("fuzz.gpuidx"), Bytes::new(input.to_vec())) else { return };
    let Ok(index) = GpuIndex::from_checkpoint(&file) else { return };
    for layer in &index.layers {
        assert_eq!(layer.on_gpu.iter().filter(|on| **on).count(), layer.bucket.len());
        assert!(layer.bucket.iter().all(|neuron| layer.on_gpu[*neuron as usize]));
    }
}
