//! The part of a model that goes to a device, its bytes, and how it is loaded.

use std::ops::ControlFlow;

use super::{GpuLoader, device_model::DeviceModel, part_buffers::PartBuffers};
use thermocline_base::error::Result;
use thermocline_gpu::{Caps, Gpu, Uploader};
use thermocline_model::Model;

/// Settings of a model on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLoad {
    /// Most tokens of a chunk; fewer where the device's limits ask for it. Registers and scratch buffers have this many rows.
    pub chunk: usize,
    /// Multiply-adds after which the work of several tokens is submitted, however quick the device is: it begins while more is
    /// recorded, and a cancellation is soon followed. A slow device's submissions are shorter
    /// ([`DevicePace`](thermocline_gpu::DevicePace)).
    pub submission: u64,
    /// True if predictors are resident with their layers even while no sparsity mode needs them.
    pub predictors: bool,
    /// Most bytes of the streaming buffer, through which cold neurons pass for the chunks of a prompt: their place on the device, and
    /// two loads of staging.
    pub streaming_buffer: u64,
}

impl Default for GpuLoad {
    /// 2^35 multiply-adds are some 10 ms on a card. A third of the streaming buffer's
    /// bytes are neurons, thousands even of wide models: enough to occupy a card.
    fn default() -> Self {
        GpuLoad { chunk: 256, submission: 1 << 35, predictors: true, streaming_buffer: 48 << 20 }
    }
}

/// The part of a layer's FFN that goes to a device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FfnPart<'a> {
    /// All of it, in the file's order.
    All,
    /// These neurons (experts, in an MoE layer), hottest first.
    Hot(&'a [u32]),
    /// Nothing.
    None,
}

/// The part of a model that goes to a device: its last layers, all or some of their neurons, and perhaps the head.
#[derive(Debug, Clone)]
pub(crate) struct DevicePart<'a> {
    /// First layer that goes there.
    pub first_layer: usize,
    /// The FFN of each layer from that one on.
    pub ffn: Vec<FfnPart<'a>>,
    /// True if the head goes there.
    pub head: bool,
    /// True if predictors go there with their layers.
    pub predictors: bool,
}

impl DevicePart<'_> {
    /// All of a model of `n_layer` layers.
    pub fn all(n_layer: usize) -> Self {
        DevicePart { first_layer: 0, ffn: vec![FfnPart::All; n_layer], head: true, predictors: true }
    }
}

/// Refuses a model of which a layer has no kernels on a device.
///
/// # Errors
/// [`Error::Unsupported`] with what the kernels lack.
pub fn device_support(model: &Model) -> Result<()> {
    PartBuffers::check(&model.config)
}

/// Bytes of a load: those of the same load on a device that only counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadBytes {
    /// Read of the file.
    pub file: u64,
    /// Held on the device, without caches; no fewer than on a real one.
    pub device: u64,
}

impl LoadBytes {
    /// Of `part`, for chunks of `chunk` tokens.
    ///
    /// # Errors
    /// Those of the load that have nothing to do with its budget.
    pub fn new(caps: &Caps, model: &Model, part: &DevicePart<'_>, chunk: usize) -> Result<Self> {
        let gpu = Gpu::counting(*caps, None)?;
        let mut file = 0;
        let mut progress = |done, _| {
            file = done;
            ControlFlow::Continue(())
        };
        let uploader = Uploader::new(&gpu, &mut progress)?;
        let loader = GpuLoader { gpu: &gpu, config: &model.config, chunk, uploader };
        let device = DeviceModel::build(loader, model, part, GpuLoad::default().submission)?;
        let held = gpu.arena().used();
        drop(device);
        Ok(LoadBytes { file, device: held })
    }
}
