//! Mamba-2 of one layer on the device, between projections and output matrix.

use super::{
    mixer_buffers::{MixerBuffers, RecurrentLayout, WORKGROUP},
    scan::{ScanOps, check_rows, scan_columns, scan_slices},
};
use crate::device::{
    GpuLoader,
    state::{GpuRowsState, StatePart},
};
use thermocline_base::error::Result;
use thermocline_cpu::ops::Mamba2Shape;
use thermocline_gpu::{Buffer, Gpu, Op, Recorder, params};
use thermocline_model::recurrent::{Mamba2Config, Mamba2Weights};

/// Scan and norm of Mamba-2. A row of projections is `[x | B | C | gate | steps]`.
#[derive(Debug)]
pub(super) struct Mamba2Ops {
    shape: Mamba2Shape,
    /// Smallest and largest step, both finite.
    step_limits: [f32; 2],
    eps: f32,
    /// `[a | dt_bias | d]`, each with one element per head.
    heads: Buffer,
    norm: Op,
}

impl Mamba2Ops {
    /// Row pitches of the mixer's buffers.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Unsupported`] for states that are too large for the
    /// kernels.
    pub fn layout(Mamba2Config { shape, .. }: &Mamba2Config) -> Result<RecurrentLayout> {
        check_rows("Mamba-2 on the GPU", "states", shape.state)?;
        Ok(RecurrentLayout::new(shape.channels() + shape.inner() + shape.heads, shape.channels(), shape.inner()))
    }

    /// Uploads `weights`, except matrices and convolution.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &MixerBuffers,
        Mamba2Config { shape, step_limits: [least, most], .. }: &Mamba2Config,
        weights: &Mamba2Weights,
    ) -> Result<Self> {
        let of_heads = [&weights.a[..], &weights.dt_bias, &weights.d].concat();
        let heads = loader.vector("constants of heads", &of_heads)?;
        let norm = loader.vector("a norm", &weights.norm)?;
        let overrides = [("GATE_FIRST", 1.0), ("WEIGHT_PER_HEAD", 1.0)];
        let of = [&buffers.heads, &buffers.projected, &norm];
        let norm = Op::of(loader.gpu, "gated_norm", WORKGROUP, &overrides, &of)?;
        let step_limits = [*least, most.min(f32::MAX)];
        Ok(Mamba2Ops { shape: *shape, step_limits, eps: loader.config.norm_eps, heads, norm })
    }

    fn columns(&self) -> u32 {
        scan_columns(self.shape.state, self.shape.head_dim)
    }
}

impl ScanOps for Mamba2Ops {
    fn op(&self, gpu: &Gpu, buffers: &MixerBuffers, state: &Buffer) -> Result<Op> {
        let columns = self.columns();
        let overrides = [("STATE_ROWS", self.shape.state as f64), ("COLUMNS", f64::from(columns))];
        let lanes = scan_slices(self.shape.state) * columns;
        let MixerBuffers { projected, convolved, heads, .. } = buffers;
        Op::of(gpu, "mamba2_scan", lanes, &overrides, &[convolved, projected, &self.heads, state, heads])
    }

    fn record(&self, recorder: &mut Recorder, layout: RecurrentLayout, states: &[GpuRowsState<'_>], tokens: usize) {
        let shape = &self.shape;
        let [heads, groups, width] = [shape.heads, shape.groups, shape.head_dim].map(|n| n as u32);
        let [vectors_pitch, rates_pitch, out_pitch] =
            [layout.convolved, layout.projected, layout.heads].map(|n| n as u32);
        let (gate_at, inner) = (shape.channels() as u32, shape.inner() as u32);
        let [least, most] = self.step_limits;
        for state in states {
            state.record(recorder, StatePart::Scan, |recorder, scan, rows| {
                let of_tokens = params::Mamba2Scan {
                    tokens: rows.len() as u32,
                    heads,
                    groups,
                    width,
                    vectors_pitch,
                    rates_pitch,
                    steps_at: gate_at + inner,
                    out_pitch,
                    least,
                    most,
                    row: rows.start as u32,
                };
                recorder.dispatch(scan, &of_tokens, [width.div_ceil(self.columns()), heads, 1]);
            });
        }
        let dim = inner / groups;
        let norm = params::GatedNorm { dim, pitch: out_pitch, gate_pitch: rates_pitch, gate_at, eps: self.eps };
        recorder.dispatch(&self.norm, &norm, [groups, tokens as u32, 1]);
    }

    fn work(&self) -> u64 {
        3 * self.shape.state_len() as u64
    }
}
