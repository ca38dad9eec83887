//! Kernels with one invocation per element.

use thermocline_base::error::Result;
use thermocline_gpu::{
    Buffer, Gpu, Op, Recorder, grid,
    params::{self, Elements},
};
use thermocline_model::{Activation, ActivationForm};

/// Invocations of a workgroup.
pub(crate) const WORKGROUP: u32 = 256;

/// The grid of a kernel that counts `elements` invocations through its rows, and the invocations in one row of it.
pub(crate) fn flat_grid(gpu: &Gpu, elements: usize, workgroup: u32) -> ([u32; 3], u32) {
    let [x, y] = grid(elements.div_ceil(workgroup as usize), gpu.caps().max_groups);
    ([x, y, 1], x * workgroup)
}

/// A kernel on rows of `cols` elements, `pitch` apart.
#[derive(Debug, Clone)]
pub struct Elementwise {
    gpu: Gpu,
    op: Op,
    cols: usize,
    pitch: usize,
}

impl Elementwise {
    /// Kernel `name` on `buffers`.
    pub fn new(
        gpu: &Gpu,
        name: &'static str,
        overrides: &[(&'static str, f64)],
        buffers: &[&Buffer],
        cols: usize,
        pitch: usize,
    ) -> Result<Self> {
        Ok(Elementwise { gpu: gpu.clone(), op: Op::of(gpu, name, WORKGROUP, overrides, buffers)?, cols, pitch })
    }

    /// Records it for the first `rows`.
    pub fn record(&self, recorder: &mut Recorder, rows: usize) {
        let (groups, stride) = flat_grid(&self.gpu, rows * self.cols, self.op.pipeline().workgroup());
        let [cols, pitch, rows] = [self.cols, self.pitch, rows].map(|n| n as u32);
        recorder.dispatch(&self.op, &Elements { cols, pitch, rows, stride }, groups);
    }
}

/// Gate and up of every neuron, or up alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateUpRows<'a> {
    pub buffer: &'a Buffer,
    pub gated: bool,
    /// True if they alternate, neuron by neuron, rather than following one another.
    pub interleaved: bool,
}

/// The activation between gate and up, and down.
#[derive(Debug, Clone)]
pub(crate) struct ActivationOp {
    gpu: Gpu,
    op: Op,
    pitch: usize,
}

impl ActivationOp {
    /// From gate and up to hidden activations in rows `pitch` apart.
    pub fn new(
        gpu: &Gpu,
        form: ActivationForm,
        gate_up: GateUpRows<'_>,
        hidden: &Buffer,
        pitch: usize,
    ) -> Result<Self> {
        let GateUpRows { buffer: gate_up, gated, interleaved } = gate_up;
        let switch = |on: bool| f64::from(u8::from(on));
        let [kind, limit] = overrides(form);
        let overrides = [kind, limit, ("GATED", switch(gated)), ("INTERLEAVED", switch(interleaved))];
        let op = Op::of(gpu, "activation", WORKGROUP, &overrides, &[gate_up, hidden])?;
        Ok(ActivationOp { gpu: gpu.clone(), op, pitch })
    }

    /// Records it for the first `neurons` of the first `rows`; neurons whose gate's activation is not above `threshold` in magnitude
    /// become zero.
    pub fn record(&self, recorder: &mut Recorder, rows: usize, neurons: usize, threshold: Option<f32>) {
        let (groups, stride) = flat_grid(&self.gpu, rows * neurons, self.op.pipeline().workgroup());
        let [cols, pitch, rows] = [neurons, self.pitch, rows].map(|n| n as u32);
        let params = params::Activation { cols, pitch, rows, stride, threshold: threshold.unwrap_or(-1.0) };
        recorder.dispatch(&self.op, &params, groups);
    }
}

/// The numbers of `activation.wgsl` for an activation with its limit.
pub(crate) fn overrides(form: ActivationForm) -> [(&'static str, f64); 2] {
    [("KIND", f64::from(kind(form.activation))), ("LIMIT", form.limit.unwrap_or(0.0).into())]
}

/// Number of the activation in `activation.wgsl`.
pub(crate) const fn kind(activation: Activation) -> u32 {
    match activation {
        Activation::Relu => 0,
        Activation::ReluSquared => 1,
        Activation::Silu => 2,
        Activation::GeluTanh => 3,
        Activation::GeluErf => 4,
        Activation::DRelu => 5,
        Activation::ClampedSwiglu => 6,
    }
}
