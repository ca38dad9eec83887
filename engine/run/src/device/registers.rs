//! Registers: the forward pass's activations of width `d_model` on a device.

use super::{
    elementwise::{Elementwise, WORKGROUP, flat_grid},
    loader::GpuLoader,
};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, BufferRows, Gpu, Op, Recorder, params, pitch};
use thermocline_model::{ModelConfig, Register};

/// One buffer per [`Register`], `[chunk, pitch]` f32.
#[derive(Debug)]
pub struct Registers {
    buffers: [Buffer; 4],
    /// `Residual += Out`, scaled.
    pub add: Elementwise,
    /// `Residual *= factor`, and the same after the addition.
    scale: [Op; 2],
    /// Elements used in a row.
    pub d_model: usize,
    /// Elements between the starts of consecutive rows.
    pub pitch: usize,
}

impl Registers {
    /// Makes four registers with one row per token of a chunk.
    pub fn new(loader: &GpuLoader<'_, '_>) -> Result<Self> {
        let (d_model, pitch) = (loader.config.d_model, pitch(loader.config.d_model));
        let register = || loader.scratch("a register", loader.chunk * pitch);
        let buffers = [register()?, register()?, register()?, register()?];
        let [residual, .., out] = &buffers;
        let add =
            Elementwise::new(loader.gpu, "add", &[residual_scale(loader.config)], &[residual, out], d_model, pitch)?;
        let scale = |add: bool| {
            let overrides = [("ADD_DELTA", f64::from(u8::from(add))), residual_scale(loader.config)];
            Op::of(loader.gpu, "scale", WORKGROUP, &overrides, &[residual, out])
        };
        let scale = [scale(false)?, scale(true)?];
        Ok(Registers { buffers, add, scale, d_model, pitch })
    }

    /// Records `Residual *= factor` for the first `rows` rows; `add`: `Out` is added first.
    pub fn record_scale(&self, gpu: &Gpu, recorder: &mut Recorder, rows: usize, add: bool, factor: f32) {
        let (groups, stride) = flat_grid(gpu, rows * self.d_model, WORKGROUP);
        let [cols, pitch, rows] = [self.d_model, self.pitch, rows].map(|n| n as u32);
        recorder.dispatch(&self.scale[usize::from(add)], &params::Scale { cols, pitch, rows, stride, factor }, groups);
    }

    /// The rows of `register`.
    pub fn rows(&self, register: Register) -> BufferRows<'_> {
        BufferRows { buffer: self.get(register), pitch: self.pitch }
    }

    /// The buffer of `register`.
    pub fn get(&self, register: Register) -> &Buffer {
        &self.buffers[register as usize]
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.pitch as u64 * 4
    }
}

/// The kernels' constant that scales what is added to the residual stream.
fn residual_scale(config: &ModelConfig) -> (&'static str, f64) {
    ("DELTA_SCALE", f64::from(config.residual_scale))
}

/// Copies rows of `row_bytes` bytes, in which the first `cols` floats are used, into
/// `[rows, cols]`.
pub(crate) fn unpad(read: &[u8], row_bytes: usize, cols: usize, to: &mut Vec<f32>) {
    to.resize(read.len() / row_bytes * cols, 0.0);
    for (to, from) in to.chunks_exact_mut(cols).zip(read.chunks_exact(row_bytes)) {
        bytemuck::cast_slice_mut(to).copy_from_slice(&from[..cols * 4]);
    }
}

/// Copies `[rows, cols]` into rows `pitch` floats apart, with zeros between them.
pub(crate) fn pad(from: &[f32], cols: usize, pitch: usize, to: &mut Vec<f32>) {
    to.clear();
    to.resize(from.len() / cols * pitch, 0.0);
    for (to, from) in to.chunks_exact_mut(pitch).zip(from.chunks_exact(cols)) {
        to[..cols].copy_from_slice(from);
    }
}
