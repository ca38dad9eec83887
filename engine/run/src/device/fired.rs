//! Masks of the hidden activations that are not zero, and the activations themselves.

use super::loader::GpuLoader;
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Op, Recorder, params};

/// Invocations of an `active_mask` workgroup, each of which computes one word.
const WORKGROUP: u32 = 128;

/// A mask written by a kernel, or the hidden activations behind it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceMask<'a> {
    pub buffer: &'a Buffer,
    /// Length in bytes.
    pub bytes: u64,
}

/// Computes masks of rows of hidden activations.
#[derive(Debug, Clone)]
pub(crate) struct FiredMask {
    /// `[rows, words]`
    mask: Buffer,
    op: Op,
    pitch: usize,
}

impl FiredMask {
    /// Prepares masks for up to `rows` rows of `hidden`. `pitch` is the length of a row in
    /// elements, a multiple of 4.
    pub fn new(loader: &GpuLoader<'_, '_>, hidden: &Buffer, rows: usize, pitch: usize) -> Result<Self> {
        let mask = loader.scratch("a mask of neurons that fired", rows * pitch.div_ceil(32))?;
        let op = Op::of(loader.gpu, "active_mask", WORKGROUP, &[("TEST", 1.0)], &[hidden, &mask])?;
        Ok(FiredMask { mask, op, pitch })
    }

    /// Records the mask of the first `neurons` neurons of the first `rows` rows. Returns its
    /// buffer, `[rows, words]`, and its length in bytes.
    pub fn record(&self, recorder: &mut Recorder, rows: usize, neurons: usize) -> DeviceMask<'_> {
        let words = neurons.div_ceil(32);
        if words > 0 {
            let blocks = (words as u32).div_ceil(self.op.pipeline().workgroup());
            let params = params::ActiveMask { neurons: neurons as u32, pitch: self.pitch as u32, threshold: 0.0 };
            recorder.dispatch(&self.op, &params, [blocks, rows as u32, 1]);
        }
        DeviceMask { buffer: &self.mask, bytes: (rows * words * 4) as u64 }
    }
}
