//! Makes the buffers of a model on a device.

use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, Purpose, Uploader, Usage};
use thermocline_model::{Ffn, LayerWeights, ModelConfig, SkipRule};

/// Makes the buffers of one model on one device.
#[derive(Debug)]
pub struct GpuLoader<'a, 'p> {
    pub gpu: &'a Gpu,
    pub config: &'a ModelConfig,
    /// Most tokens per chunk: the rows of a register.
    pub chunk: usize,
    /// As [`GpuLoad::threshold_ratio`](super::GpuLoad::threshold_ratio).
    pub threshold_ratio: f32,
    pub uploader: Uploader<'p>,
}

impl GpuLoader<'_, '_> {
    /// The rule for the neurons of a layer that may be skipped on the device. Thresholds without
    /// scales of gates are the same on every side.
    pub fn skip_rule(&self, weights: &LayerWeights) -> SkipRule {
        let rule = SkipRule::of(weights, self.config.activation);
        let scaled = matches!(&weights.ffn, Ffn::Dense(ffn) if ffn.gate_scales.is_some());
        let ratio = if scaled { self.threshold_ratio } else { 1.0 };
        SkipRule { threshold: rule.threshold.map(|threshold| threshold * ratio), ..rule }
    }

    /// Makes a scratch buffer of `floats` zeros.
    pub fn scratch(&self, what: &'static str, floats: usize) -> Result<Buffer> {
        self.gpu.arena().buffer(Purpose::Scratch, what, floats as u64 * 4, Usage::Storage)
    }

    /// Uploads a norm or a bias.
    pub fn vector(&mut self, what: &'static str, values: &[f32]) -> Result<Buffer> {
        self.uploader.vector(Purpose::Vectors, what, values)
    }
}
