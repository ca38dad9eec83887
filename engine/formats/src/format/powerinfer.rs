//! PowerInfer's `<model>.generated.gpuidx`: the neurons that PowerInfer placed on the GPU.
//!
//! The file is a GGUF with PowerInfer's magic, architecture `generic.gpu_index`, and two tables of
//! i32 per layer. The tables are identified by their position. `blk.N.gpu_idx` has a 1 for each
//! neuron on the GPU. `blk.N.gpu_bucket` has the indices of these neurons, ascending. The model
//! itself (magic `PWRI`) is read like any GGUF.

use std::path::{Path, PathBuf};

use super::{Checkpoint, ReadMode, Tensor, gguf};
use crate::quant::TensorType;
use thermocline_base::error::{Error, Location, Result};

const BLOCK_COUNT: &str = "generic.gpu_index.block_count";
const VRAM_CAPACITY: &str = "split.vram_capacity";

/// One layer's split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSplit {
    /// For each neuron, whether it is on the GPU.
    pub on_gpu: Vec<bool>,
    /// Indices of the neurons on the GPU, ascending.
    pub bucket: Vec<u32>,
}

/// A split of every layer's neurons between GPU and CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuIndex {
    /// The VRAM budget of the split, in bytes (not the VRAM in use).
    pub vram_capacity: Option<u64>,
    /// Splits of the layers, from the first on.
    pub layers: Vec<LayerSplit>,
}

impl GpuIndex {
    /// Path of PowerInfer's index of `model`: `<model>.generated.gpuidx`.
    pub fn path_beside(model: &Path) -> PathBuf {
        let mut name = model.as_os_str().to_owned();
        name.push(".generated.gpuidx");
        name.into()
    }

    /// Reads the index at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_checkpoint(&gguf::open(path, ReadMode::Read)?)
    }

    /// Reads an index from memory.
    pub fn from_checkpoint(file: &Checkpoint) -> Result<Self> {
        let path = &file.path;
        let architecture = file.metadata.str("general.architecture")?;
        if architecture != Some(gguf::GPU_INDEX_ARCHITECTURE) {
            let location = Location::Key("general.architecture".to_owned());
            let got = architecture.unwrap_or("nothing").to_owned();
            return Err(Error::malformed(path, location, format!("`{}`", gguf::GPU_INDEX_ARCHITECTURE), got));
        }
        let layers = file.metadata.usize(BLOCK_COUNT)?;
        let layers = layers.ok_or_else(|| file.metadata.missing(BLOCK_COUNT, "the number of layers"))?;
        if layers.checked_mul(2) != Some(file.tensors().len()) {
            let location = Location::Key(BLOCK_COUNT.to_owned());
            let got = format!("{layers} layers and {} tensors", file.tensors().len());
            return Err(Error::malformed(path, location, "two tensors per layer", got));
        }
        let vram_capacity = file.metadata.get(VRAM_CAPACITY).and_then(|value| value.as_u64());
        let layers = file.tensors().chunks_exact(2).map(|pair| layer(file, &pair[0], &pair[1]));
        Ok(GpuIndex { vram_capacity, layers: layers.collect::<Result<_>>()? })
    }
}

fn layer(file: &Checkpoint, on_gpu: &Tensor, bucket: &Tensor) -> Result<LayerSplit> {
    let refuse = |tensor: &Tensor, expected: &str, got: String| {
        Error::malformed(&file.path, Location::Tensor(tensor.name.clone()), expected, got)
    };
    let numbers = |tensor: &Tensor| -> Result<Vec<i32>> {
        if tensor.ty != TensorType::I32 || tensor.shape.len() != 1 {
            return Err(refuse(tensor, "a vector of I32", format!("{:?} of {}", tensor.shape, tensor.ty)));
        }
        Ok(tensor.data.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect())
    };
    let flags = numbers(on_gpu)?;
    let bucket_numbers = numbers(bucket)?;
    let flagged = flags.iter().zip(0i32..).filter(|(flag, _)| **flag == 1).map(|(_, neuron)| neuron);
    if !flagged.eq(bucket_numbers.iter().copied()) {
        let expected = format!("the ascending numbers of the neurons whose value in `{}` is 1", on_gpu.name);
        return Err(refuse(bucket, &expected, format!("{} other numbers", bucket_numbers.len())));
    }
    let on_gpu = flags.into_iter().map(|flag| flag == 1).collect();
    Ok(LayerSplit { on_gpu, bucket: bucket_numbers.into_iter().map(i32::cast_unsigned).collect() })
}
