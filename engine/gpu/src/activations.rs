//! Conversion of activations for matrix product kernels: rounding to 8 bits for integer products,
//! scaling for 16-bit float products.

use thermocline_shaders::params;

use super::{Buffer, FEW_TOKENS, Gpu, GpuMatrix, Op, Purpose, Recorder, Usage};
use thermocline_base::error::Result;

/// The activations of up to [`FEW_TOKENS`] tokens, rounded to eight bits.
#[derive(Debug, Clone)]
pub(super) struct QuantisedActivations {
    chunks: u32,
    op: Op,
    /// Per token, 36 bytes (nine 32-bit words) per chunk of 32 columns.
    pub to: Buffer,
}

impl QuantisedActivations {
    /// Prepares the rounding of rows of `x`, the input of a product with `matrix`.
    pub fn new(gpu: &Gpu, matrix: &GpuMatrix, x: &Buffer) -> Result<Self> {
        // No row of `x` is shorter than its columns, so this is the most rows that `x` can have.
        let rows = (x.bytes() / (matrix.cols() as u64 * 4).max(1)).clamp(1, FEW_TOKENS as u64);
        let chunks = matrix.chunks();
        let bytes = rows * chunks as u64 * 36;
        let to = gpu.arena().buffer(Purpose::Scratch, "8-bit activations", bytes, Usage::Storage)?;
        let op = Op::of(gpu, "quantise_q8", 64, &[], &[x, &to])?;
        Ok(QuantisedActivations { chunks: chunks as u32, op, to })
    }

    /// Records the rounding of the first `tokens` rows, which are `x_pitch` elements apart.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize, x_pitch: u32) {
        let (chunks, tokens, workgroup) = (self.chunks, tokens as u32, self.op.pipeline().workgroup());
        let groups = (chunks * tokens).div_ceil(workgroup);
        let params = params::Quantise { chunks, tokens, x_pitch, stride: groups * workgroup };
        recorder.dispatch(&self.op, &params, [groups, 1, 1]);
    }
}

/// Powers of two that scale each token's activations into the range where 16-bit floats keep full
/// precision. A 16-bit float holds at most 65504, and some models have larger activations.
#[derive(Debug, Clone)]
pub(super) struct ActivationScales {
    chunks: u32,
    op: Op,
    /// `[tokens, 2]`: the factor on the activations, and its inverse.
    pub scales: Buffer,
}

impl ActivationScales {
    /// Prepares scales for the rows of `x`, which have `chunks` chunks of 32 columns.
    pub fn new(gpu: &Gpu, chunks: usize, x: &Buffer) -> Result<Self> {
        // A row of `x` is at least as long as its columns, so this is the most rows that `x` can
        // hold.
        let tokens = (x.bytes() / (128 * chunks as u64)).max(1);
        let scales = gpu.arena().buffer(Purpose::Scratch, "activation scales", tokens * 8, Usage::Storage)?;
        let op = Op::of(gpu, "half_scale", 128, &[], &[x, &scales])?;
        Ok(ActivationScales { chunks: chunks as u32, op, scales })
    }

    /// Records the computation of the scales of the first `tokens` rows, which are `x_pitch`
    /// elements apart.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize, x_pitch: u32) {
        recorder.dispatch(&self.op, &params::HalfScale { chunks: self.chunks, x_pitch }, [tokens as u32, 1, 1]);
    }
}
