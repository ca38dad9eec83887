//! The gated delta rule of one layer on the device, between projections and output matrix.

use super::{
    mixer_buffers::{MixerBuffers, RecurrentLayout, WORKGROUP},
    scan::{ScanOps, check_rows, scan_columns, scan_slices},
};
use crate::device::{
    GpuLoader,
    state::{GpuRowsState, StatePart},
};
use thermocline_base::error::Result;
use thermocline_cpu::ops::DeltaNetShape;
use thermocline_gpu::{Buffer, Gpu, Op, Recorder, params};
use thermocline_model::recurrent::{DeltaNetConfig, DeltaNetWeights};

/// Inputs and norm of a gated delta net.
#[derive(Debug)]
pub(super) struct DeltaNetOps {
    shape: DeltaNetShape,
    eps: f32,
    /// Normalises queries and keys to length one and computes the rates.
    inputs: Op,
    norm: Op,
}

impl DeltaNetOps {
    /// Row pitches of the mixer's buffers.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Unsupported`] for keys that are too wide for the kernels.
    pub fn layout(DeltaNetConfig { shape, .. }: &DeltaNetConfig) -> Result<RecurrentLayout> {
        check_rows("gated delta net on the GPU", "keys", shape.k_dim)?;
        Ok(RecurrentLayout::new(shape.qkv() + shape.values() + 2 * shape.v_heads, shape.qkv(), shape.values()))
    }

    /// Uploads `weights`, except matrices and convolution.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &MixerBuffers,
        DeltaNetConfig { shape, .. }: &DeltaNetConfig,
        weights: &DeltaNetWeights,
    ) -> Result<Self> {
        let (a, dt_bias) = (loader.vector("decays", &weights.a)?, loader.vector("a bias", &weights.dt_bias)?);
        let norm = loader.vector("a norm", &weights.norm.weight)?;
        let op = |kernel, of: &[&Buffer]| Op::of(loader.gpu, kernel, WORKGROUP, &[], of);
        let inputs = op("delta_inputs", &[&buffers.convolved, &buffers.projected, &a, &dt_bias])?;
        let norm = op("gated_norm", &[&buffers.heads, &buffers.projected, &norm])?;
        Ok(DeltaNetOps { shape: *shape, eps: loader.config.norm_eps, inputs, norm })
    }

    fn columns(&self) -> u32 {
        scan_columns(self.shape.k_dim, self.shape.v_dim)
    }
}

impl ScanOps for DeltaNetOps {
    fn op(&self, gpu: &Gpu, buffers: &MixerBuffers, state: &Buffer) -> Result<Op> {
        let (shape, columns) = (&self.shape, self.columns());
        let overrides = [
            ("STATE_ROWS", shape.k_dim as f64),
            ("COLUMNS", f64::from(columns)),
            ("INTERLEAVED", f64::from(u8::from(shape.interleaved))),
        ];
        let lanes = scan_slices(shape.k_dim) * columns;
        let MixerBuffers { projected, convolved, heads, .. } = buffers;
        Op::of(gpu, "delta_net", lanes, &overrides, &[convolved, projected, state, heads])
    }

    fn record(&self, recorder: &mut Recorder, layout: RecurrentLayout, states: &[GpuRowsState<'_>], tokens: usize) {
        let shape = &self.shape;
        let [k_heads, v_heads, k_dim, v_dim] =
            [shape.k_heads, shape.v_heads, shape.k_dim, shape.v_dim].map(|n| n as u32);
        let [qkv_pitch, rates_pitch, out_pitch] = [layout.convolved, layout.projected, layout.heads].map(|n| n as u32);
        let gate_at = shape.qkv() as u32;
        let decay_at = gate_at + shape.values() as u32;
        let rate_at = decay_at + v_heads;
        let inputs = params::DeltaInputs { k_heads, v_heads, k_dim, qkv_pitch, rates_pitch, decay_at, rate_at };
        recorder.dispatch(&self.inputs, &inputs, [2 * k_heads + 1, tokens as u32, 1]);
        for state in states {
            state.record(recorder, StatePart::Scan, |recorder, scan, rows| {
                let of_tokens = params::DeltaNet {
                    tokens: rows.len() as u32,
                    k_heads,
                    v_heads,
                    v_dim,
                    qkv_pitch,
                    rates_pitch,
                    decay_at,
                    rate_at,
                    out_pitch,
                    row: rows.start as u32,
                };
                recorder.dispatch(scan, &of_tokens, [v_dim.div_ceil(self.columns()), v_heads, 1]);
            });
        }
        let norm = params::GatedNorm { dim: v_dim, pitch: out_pitch, gate_pitch: rates_pitch, gate_at, eps: self.eps };
        recorder.dispatch(&self.norm, &norm, [v_heads, tokens as u32, 1]);
    }

    fn work(&self) -> u64 {
        3 * self.shape.state() as u64
    }
}
