//! Buffers of a recurrent mixer on the device, and their shape.

use crate::device::GpuLoader;
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, pitch};
use thermocline_model::RecurrentConfig;

/// Invocations of a workgroup, for kernels that support any number.
pub(in crate::device) const WORKGROUP: u32 = 128;

/// Row pitches of a recurrent mixer's buffers, in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecurrentLayout {
    /// Projections per token: first the convolution's channels, then gates and rates.
    pub projected: usize,
    /// Channels after the convolution.
    pub convolved: usize,
    /// Outputs of the heads; 0 without a scan.
    pub heads: usize,
}

impl RecurrentLayout {
    /// Makes the layout of rows with these numbers of floats.
    pub fn new(projected: usize, convolved: usize, heads: usize) -> Self {
        RecurrentLayout { projected: pitch(projected), convolved: pitch(convolved), heads: pitch(heads) }
    }
}

/// Buffers of one kind of mixer, shared by its layers.
#[derive(Debug, Clone)]
pub(crate) struct MixerBuffers {
    pub of: RecurrentConfig,
    pub layout: RecurrentLayout,
    /// `[chunk, layout.projected]`
    pub projected: Buffer,
    /// `[chunk, layout.convolved]`
    pub convolved: Buffer,
    /// `[chunk, layout.heads]`
    pub heads: Buffer,
}

impl MixerBuffers {
    /// Makes the buffers of mixers with the kind and sizes `of`.
    pub fn new(loader: &GpuLoader<'_, '_>, of: &RecurrentConfig, layout: RecurrentLayout) -> Result<Self> {
        let buffer = |what, pitch: usize| loader.scratch(what, loader.chunk * pitch);
        Ok(MixerBuffers {
            of: of.clone(),
            layout,
            projected: buffer("a recurrent mixer's projections", layout.projected)?,
            convolved: buffer("convolved channels", layout.convolved)?,
            heads: buffer("a recurrent mixer's heads", layout.heads)?,
        })
    }
}
