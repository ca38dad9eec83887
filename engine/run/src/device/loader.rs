//! Makes the buffers of a model on a device.

use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, Purpose, Uploader, Usage};
use thermocline_model::ModelConfig;

/// Makes the buffers of one model on one device.
#[derive(Debug)]
pub struct GpuLoader<'a, 'p> {
    pub gpu: &'a Gpu,
    pub config: &'a ModelConfig,
    /// Most tokens per chunk: the rows of a register.
    pub chunk: usize,
    pub uploader: Uploader<'p>,
}

impl GpuLoader<'_, '_> {
    /// Makes a scratch buffer of `floats` zeros.
    pub fn scratch(&self, what: &'static str, floats: usize) -> Result<Buffer> {
        self.gpu.arena().buffer(Purpose::Scratch, what, floats as u64 * 4, Usage::Storage)
    }

    /// Uploads a norm or a bias.
    pub fn vector(&mut self, what: &'static str, values: &[f32]) -> Result<Buffer> {
        self.uploader.vector(Purpose::Vectors, what, values)
    }
}
