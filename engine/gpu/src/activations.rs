//! Conversion of activations for matrix product kernels: rounding to 8 bits for integer products,
//! scaling for 16-bit float products.

use thermocline_shaders::params;

use super::{Buffer, Gpu, Op, Purpose, Recorder, Usage};
use thermocline_base::error::Result;

/// One token's activations, rounded to eight bits.
#[derive(Debug, Clone)]
pub(super) struct QuantisedActivations {
    params: params::Quantise,
    op: Op,
    /// 36 bytes (nine 32-bit words) per chunk of 32 columns.
    pub to: Buffer,
}

impl QuantisedActivations {
    /// Prepares the rounding of the first row of `x`, which has `chunks` chunks of 32 columns.
    pub fn new(gpu: &Gpu, chunks: usize, x: &Buffer) -> Result<Self> {
        let to = gpu.arena().buffer(Purpose::Scratch, "8-bit activations", chunks as u64 * 36, Usage::Storage)?;
        let op = Op::of(gpu, "quantise_q8", 64, &[], &[x, &to])?;
        let stride = (chunks as u32).next_multiple_of(op.pipeline().workgroup());
        let params = params::Quantise { chunks: chunks as u32, tokens: 1, x_pitch: 32 * chunks as u32, stride };
        Ok(QuantisedActivations { params, op, to })
    }

    /// Records the rounding.
    pub fn record(&self, recorder: &mut Recorder) {
        recorder.dispatch(&self.op, &self.params, [self.params.stride / self.op.pipeline().workgroup(), 1, 1]);
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
