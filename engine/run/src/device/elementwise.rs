//! Kernels with one invocation per element.

use thermocline_base::error::Result;
use thermocline_gpu::{
    Binding, Buffer, Gpu, Op, Recorder, grid,
    params::{self, Elements},
};
use thermocline_model::{Activation, ActivationForm};

/// Invocations of a workgroup.
pub(crate) const WORKGROUP: u32 = 256;

/// Grid of a kernel whose invocations are counted through the grid's rows, for `elements` elements,
/// and the invocations per grid row.
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
    /// Prepares the kernel `name` on `buffers`.
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

    /// Records the kernel for the first `rows` rows.
    pub fn record(&self, recorder: &mut Recorder, rows: usize) {
        let (groups, stride) = flat_grid(&self.gpu, rows * self.cols, self.op.pipeline().workgroup());
        let [cols, pitch, rows] = [self.cols, self.pitch, rows].map(|n| n as u32);
        recorder.dispatch(&self.op, &Elements { cols, pitch, rows, stride }, groups);
    }
}

/// Gate and up values of every neuron, or up values alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateUpRows<'a> {
    pub buffer: &'a Buffer,
    pub gated: bool,
    /// True if gate and up alternate neuron by neuron; false if all gates precede all ups.
    pub interleaved: bool,
}

/// The activation, which turns gate and up values into the input of the down projection.
#[derive(Debug, Clone)]
pub(crate) struct ActivationOp {
    gpu: Gpu,
    op: Op,
    /// Overrides and bindings of `op`.
    overrides: [(&'static str, f64); 4],
    gate_up: Buffer,
    hidden: Buffer,
    pitch: usize,
}

impl ActivationOp {
    /// Prepares the activation, which writes hidden values in rows `pitch` apart.
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
        let op = Self::op(gpu, overrides, [gate_up, hidden], None)?;
        Ok(ActivationOp { gpu: gpu.clone(), op, overrides, gate_up: gate_up.clone(), hidden: hidden.clone(), pitch })
    }

    fn op(
        gpu: &Gpu,
        overrides: [(&'static str, f64); 4],
        [gate_up, hidden]: [&Buffer; 2],
        scales: Option<Binding>,
    ) -> Result<Op> {
        let scaled = [("SCALED", f64::from(u8::from(scales.is_some())))];
        let overrides: Vec<_> = overrides.into_iter().chain(scaled).collect();
        let pipeline = gpu.pipelines().get("activation", None, WORKGROUP, &overrides)?;
        Op::new(gpu, &pipeline, &[gate_up.into(), scales.unwrap_or(gpu.nothing().into()), hidden.into()])
    }

    /// Returns the activation of a layer with scales. The kernel multiplies the activated gates by
    /// `scales`, `[neurons]`, and compares the products with a threshold. `None` stands for ones.
    pub fn scaled_by(&self, scales: Option<Binding>) -> Result<Self> {
        let op = Self::op(&self.gpu, self.overrides, [&self.gate_up, &self.hidden], scales)?;
        Ok(ActivationOp { op, ..self.clone() })
    }

    /// Records the activation for the first `neurons` neurons of the first `rows` rows. A neuron
    /// becomes zero unless the magnitude of its gate's activation, times its scale, is above
    /// `threshold`.
    pub fn record(&self, recorder: &mut Recorder, rows: usize, neurons: usize, threshold: Option<f32>) {
        let (groups, stride) = flat_grid(&self.gpu, rows * neurons, self.op.pipeline().workgroup());
        let [cols, pitch, rows] = [neurons, self.pitch, rows].map(|n| n as u32);
        let params = params::Activation { cols, pitch, rows, stride, threshold: threshold.unwrap_or(-1.0) };
        recorder.dispatch(&self.op, &params, groups);
    }
}

/// Override constants of `activation.wgsl` for an activation with its limit.
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
