//! An FFN that is whole on a device: gate and up, activation, down.

use super::{
    elementwise::{ActivationOp, GateUpRows, overrides},
    fired::{DeviceMask, FiredMask},
    loader::GpuLoader,
    neuron_rows::NeuronsDown,
    norm::NormOp,
    product::Product,
    segment::Segment,
};
use crate::runtime::Probe;
use thermocline_base::error::Result;
use thermocline_gpu::{
    Binding, Buffer, BufferRows, ExpertGateUp, GateFirst, Gpu, MemoryUse, Op, Purpose, Recorder, grid, params, pitch,
};
use thermocline_model::{ActivationForm, Down, FfnWeights, LayerNorms, NormSlot};

/// Buffers between the matrices of FFNs of one shape; all layers share them.
#[derive(Debug, Clone)]
pub(crate) struct FfnBuffers {
    /// `[rows, gate | up]`, or `[rows, up]` without gates.
    pub gate_up: Buffer,
    /// Floats between the starts of consecutive rows of `gate_up`.
    pub gate_up_pitch: usize,
    /// `[rows, pitch(n_ff)]`, after the activation.
    pub hidden: Buffer,
    /// In a dense FFN, with the layer's scales of gates.
    activation: ActivationOp,
    fired: FiredMask,
    pub n_ff: usize,
    pub gated: bool,
    /// The form of hidden values.
    pub form: ActivationForm,
}

/// Shape of FFNs that share buffers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FfnShape {
    /// Neurons.
    pub n_ff: usize,
    pub gated: bool,
    /// As [`FfnWeights::limit`].
    pub limit: Option<f32>,
}

impl FfnShape {
    pub fn of(weights: &FfnWeights) -> Self {
        FfnShape { n_ff: weights.up.weight.rows(), gated: weights.gate.is_some(), limit: weights.limit }
    }
}

impl FfnBuffers {
    /// Makes the buffers for `rows` tokens (or pairs of a token and an expert) and FFNs of this
    /// shape.
    pub fn new(loader: &GpuLoader<'_, '_>, rows: usize, shape: FfnShape) -> Result<Self> {
        let FfnShape { n_ff, gated, limit } = shape;
        let form = ActivationForm { activation: loader.config.activation, limit };
        let gate_up_pitch = pitch(n_ff) * if gated { 2 } else { 1 };
        let gate_up = loader.scratch("gate and up", rows * gate_up_pitch)?;
        let hidden = loader.scratch("hidden activations", rows * pitch(n_ff))?;
        let from = GateUpRows { buffer: &gate_up, gated, interleaved: false };
        let activation = ActivationOp::new(loader.gpu, form, from, &hidden, pitch(n_ff))?;
        let fired = FiredMask::new(loader, &hidden, rows, pitch(n_ff))?;
        Ok(FfnBuffers { gate_up, gate_up_pitch, hidden, activation, fired, n_ff, gated, form })
    }

    /// True if these buffers suit FFNs of this shape.
    pub fn fits(&self, shape: FfnShape) -> bool {
        FfnShape { n_ff: self.n_ff, gated: self.gated, limit: self.form.limit } == shape
    }

    /// Reads gate and up back for `probe`.
    pub fn show(&self, segment: &mut Segment, tokens: usize, layer: usize, probe: &mut dyn Probe) -> Result<()> {
        let (row, n_ff) = (self.gate_up_pitch * 4, self.n_ff);
        let (mut gate, mut up) = (Vec::new(), Vec::new());
        segment.read(&[(&self.gate_up, 0, (tokens * row) as u64)], |read| {
            for row in read.chunks_exact(row) {
                let (first, second) = row.split_at(n_ff * 4);
                let second = if self.gated { &second[..n_ff * 4] } else { first };
                up.extend_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(second));
                if self.gated {
                    gate.extend_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(first));
                }
            }
        })?;
        probe.ffn_hidden(layer, tokens, &gate, &up);
        Ok(())
    }

    /// Records the activation of the first `rows` rows. Neurons whose gate is not above `threshold`
    /// become zero.
    pub fn activate(&self, recorder: &mut Recorder, rows: usize, threshold: Option<f32>) {
        self.activation.record(recorder, rows, self.n_ff, threshold);
    }

    /// Records the mask of fired neurons for the first `rows` rows, `[rows, n_ff.div_ceil(32)]`. A
    /// neuron counts as fired if its activation is above `threshold`, or non-zero if `threshold` is
    /// `None`. The mask must be recorded after everything that reads the activations.
    pub fn record_fired(&self, recorder: &mut Recorder, rows: usize, threshold: Option<f32>) -> DeviceMask<'_> {
        if threshold.is_some() {
            self.activation.record(recorder, rows, self.n_ff, threshold);
        }
        self.fired.record(recorder, rows, self.n_ff)
    }
}

/// One FFN for every token, prepared: `y = down(activation(gate x, up x))`.
#[derive(Debug)]
pub(crate) struct DenseFfn {
    pub buffers: FfnBuffers,
    gate_up: Product,
    /// Gate, up and activation of one token, for an FFN with gates that have no scales. The FFN is
    /// its only expert.
    gate_first: Option<ExpertGateUp>,
    /// Applied between gate and activation.
    gate_excess: Option<GateExcess>,
    /// Applied between activation and down.
    hidden_norm: Option<NormOp>,
    down: DownOps,
}

/// Replaces each gate by its excess over the mean of the token's gates plus some standard
/// deviations.
#[derive(Debug)]
struct GateExcess {
    gpu: Gpu,
    op: Op,
    deviations: f32,
}

impl GateExcess {
    /// Invocations of a workgroup, which computes one token.
    const WORKGROUP: u32 = 256;

    fn record(&self, recorder: &mut Recorder, buffers: &FfnBuffers, tokens: usize) {
        let [x, y] = grid(tokens, self.gpu.caps().max_groups);
        let [cols, pitch, rows] = [buffers.n_ff, buffers.gate_up_pitch, tokens].map(|n| n as u32);
        let params = params::GateExcess { cols, pitch, rows, stride: x, deviations: self.deviations };
        recorder.dispatch(&self.op, &params, [x, y, 1]);
    }
}

/// The down projection, with one row per output or one row per neuron.
#[derive(Debug)]
enum DownOps {
    Outputs(Product),
    Neurons(NeuronsDown),
}

impl DenseFfn {
    /// Uploads `weights`. Partial sums are shared with the layer `before` if they fit. `buffers`
    /// must have this width.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        before: Option<&DenseFfn>,
        buffers: &FfnBuffers,
        weights: &FfnWeights,
        from: &Buffer,
        into: BufferRows<'_>,
    ) -> Result<Self> {
        let what = MemoryUse { purpose: Purpose::Ffn, what: "FFN weights" };
        let rows: Vec<_> = weights.gate.iter().chain([&weights.up]).collect();
        let to = BufferRows { buffer: &buffers.gate_up, pitch: buffers.gate_up_pitch };
        let gate_up = Product::new(loader, what, &rows, from, to)?;
        let down = match &weights.down {
            Down::Outputs(down) => DownOps::Outputs(Product::new(loader, what, &[down], &buffers.hidden, into)?),
            Down::Neurons(down) => {
                let before = match before {
                    Some(DenseFfn { down: DownOps::Neurons(before), .. }) => Some(before),
                    _ => None,
                };
                DownOps::Neurons(NeuronsDown::new(loader, before, down, &buffers.hidden, into.buffer)?)
            }
        };
        let gate_first = match &gate_up.matrices[..] {
            [matrix] if buffers.gated && weights.gate_scales.is_none() && matrix.parts().len() == 1 => {
                let input = GateFirst {
                    x: from,
                    x_pitch: pitch(matrix.cols()),
                    pairs_per_row: 1,
                    // The only expert is in slot 0.
                    places: loader.gpu.nothing(),
                    bias: gate_up.biases[0].as_ref(),
                    activation: overrides(buffers.form),
                    neurons: buffers.n_ff,
                    gates: None,
                    hidden: (&buffers.hidden, pitch(buffers.n_ff)),
                };
                Some(ExpertGateUp::new(loader.gpu, matrix, 0..1, &input)?)
            }
            _ => None,
        };
        let scales = weights.gate_scales.as_ref().map(|scales| loader.vector("scales of gates", scales)).transpose()?;
        let activation = buffers.activation.scaled_by(scales.as_ref().map(Binding::from))?;
        let buffers = FfnBuffers { activation, ..buffers.clone() };
        Ok(DenseFfn { buffers, gate_up, gate_first, gate_excess: None, hidden_norm: None, down })
    }

    /// Sets the norm of hidden values before the down projection, if the layer has one. Also sets,
    /// between gate and activation, the excess of gates over their mean plus `deviations` standard
    /// deviations.
    pub fn set_inner(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        norms: LayerNorms<'_>,
        deviations: Option<f32>,
    ) -> Result<()> {
        self.hidden_norm = NormOp::within(loader, norms, NormSlot::Hidden, &self.buffers.hidden)?;
        if let Some(deviations) = deviations.filter(|_| self.buffers.gated) {
            let op = Op::of(loader.gpu, "gate_excess", GateExcess::WORKGROUP, &[], &[&self.buffers.gate_up])?;
            self.gate_excess = Some(GateExcess { gpu: loader.gpu.clone(), op, deviations });
        }
        Ok(())
    }

    /// Records gate and up.
    pub fn record_gate_up(&self, recorder: &mut Recorder, tokens: usize) {
        self.gate_up.record(recorder, tokens);
        if let Some(excess) = &self.gate_excess {
            excess.record(recorder, &self.buffers, tokens);
        }
    }

    /// Records the whole FFN. Neurons whose gate is not above `threshold` are zero. If there is
    /// only one token, their up rows are not read.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize, threshold: Option<f32>) {
        let gate_first = self.gate_first.as_ref().filter(|_| tokens == 1 && self.gate_excess.is_none());
        match gate_first.zip(threshold) {
            Some((gate_first, threshold)) => gate_first.record(recorder, 1, threshold),
            None => {
                self.record_gate_up(recorder, tokens);
                self.buffers.activate(recorder, tokens, threshold);
            }
        }
        self.record_hidden_down(recorder, tokens);
    }

    /// Records activation and down, after [`DenseFfn::record_gate_up`].
    pub fn record_down(&self, recorder: &mut Recorder, tokens: usize) {
        self.buffers.activate(recorder, tokens, None);
        self.record_hidden_down(recorder, tokens);
    }

    /// Records, after [`FfnBuffers::record_fired`], the hidden activations of one token as they
    /// were before that mask. `above`: the mask used a threshold. Returns `None` if a norm has
    /// changed the activations.
    pub fn record_strength(&self, recorder: &mut Recorder, above: bool) -> Option<DeviceMask<'_>> {
        let buffers = &self.buffers;
        if self.hidden_norm.is_some() {
            return None;
        }
        if above {
            buffers.activate(recorder, 1, None);
        }
        Some(DeviceMask { buffer: &buffers.hidden, bytes: buffers.n_ff as u64 * 4 })
    }

    fn record_hidden_down(&self, recorder: &mut Recorder, tokens: usize) {
        if let Some(norm) = &self.hidden_norm {
            norm.record(recorder, tokens, false);
        }
        match &self.down {
            DownOps::Outputs(down) => down.record(recorder, tokens),
            DownOps::Neurons(down) => down.record(recorder, tokens),
        }
    }

    /// Multiply-adds per token.
    pub fn work(&self) -> u64 {
        let (DownOps::Outputs(Product { work, .. }) | DownOps::Neurons(NeuronsDown { work, .. })) = &self.down;
        self.gate_up.work + work
    }
}
