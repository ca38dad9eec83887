//! The part of a model that is loaded on a device, the bytes of the load, and its settings.

use std::ops::ControlFlow;

use super::{GpuLoader, device_model::DeviceModel, part_buffers::PartBuffers};
use thermocline_base::error::Result;
use thermocline_gpu::{Caps, Gpu, Uploader};
use thermocline_model::Model;

/// Settings of a model on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuLoad {
    /// Most tokens per chunk, or fewer if the device's limits require it. Registers and scratch
    /// buffers have this many rows.
    pub chunk: usize,
    /// Multiply-adds after which the work of several tokens is submitted, even if the device is
    /// fast. The device starts while the CPU records more, and a cancellation takes effect soon. A
    /// slow device gets shorter submissions ([`DevicePace`](thermocline_gpu::DevicePace)).
    pub submission: u64,
    /// True if predictors are resident with their layers even if no sparsity mode uses them.
    pub predictors: bool,
    /// Most bytes of the streaming buffer, through which cold neurons pass for the chunks of a
    /// prompt. Includes the buffer on the device and two staging buffers.
    pub streaming_buffer: u64,
    /// Ratio of the device's activation thresholds to those of the CPU, in layers with scales of
    /// gates. [`PlacementSolver`](crate::placement::PlacementSolver::threshold_ratio) computes it.
    /// Speeds that are measured after the load do not change it.
    pub threshold_ratio: f32,
}

impl Default for GpuLoad {
    /// 2^35 multiply-adds take some 10 ms on a card. A third of the streaming buffer's bytes holds
    /// thousands of neurons even in wide models, which is enough to occupy a card.
    fn default() -> Self {
        GpuLoad { chunk: 256, submission: 1 << 35, predictors: true, streaming_buffer: 48 << 20, threshold_ratio: 1.0 }
    }
}

/// The part of a layer's FFN that is loaded on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FfnPart<'a> {
    /// The whole FFN, in the file's order.
    All,
    /// These neurons (experts in an MoE layer), hottest first.
    Hot(&'a [u32]),
    /// Nothing.
    None,
}

/// The part of a model that is loaded on a device: its last layers, all or some of their neurons,
/// and perhaps the head.
#[derive(Debug, Clone)]
pub(crate) struct DevicePart<'a> {
    /// First layer on the device.
    pub first_layer: usize,
    /// The part of the FFN of each layer, starting with `first_layer`.
    pub ffn: Vec<FfnPart<'a>>,
    /// True if the head is loaded.
    pub head: bool,
    /// True if predictors are loaded with their layers.
    pub predictors: bool,
}

impl DevicePart<'_> {
    /// The whole of a model with `n_layer` layers.
    pub fn all(n_layer: usize) -> Self {
        DevicePart { first_layer: 0, ffn: vec![FfnPart::All; n_layer], head: true, predictors: true }
    }
}

/// Returns an error if a device has no kernels for some layer of the model.
///
/// # Errors
/// `Error::Unsupported` names what the kernels lack.
pub fn device_support(model: &Model) -> Result<()> {
    PartBuffers::check(&model.config)
}

/// Bytes of a load, counted by the same load on a device that only counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadBytes {
    /// Bytes read from the file.
    pub file: u64,
    /// Bytes held on the device, without caches; at least as many as on a real device.
    pub device: u64,
}

impl LoadBytes {
    /// Counts the bytes of `part`, for chunks of `chunk` tokens.
    ///
    /// # Errors
    /// All errors of the load except those that depend on its budget.
    pub fn new(caps: &Caps, model: &Model, part: &DevicePart<'_>, chunk: usize) -> Result<Self> {
        let gpu = Gpu::counting(*caps, None)?;
        let mut file = 0;
        let mut progress = |done, _| {
            file = done;
            ControlFlow::Continue(())
        };
        let uploader = Uploader::new(&gpu, &mut progress)?;
        let threshold_ratio = GpuLoad::default().threshold_ratio;
        let loader = GpuLoader { gpu: &gpu, config: &model.config, chunk, threshold_ratio, uploader };
        let device = DeviceModel::build(loader, model, part, GpuLoad::default().submission)?;
        let held = gpu.arena().used();
        drop(device);
        Ok(LoadBytes { file, device: held })
    }
}
