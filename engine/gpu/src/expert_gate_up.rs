//! Computes the hidden activations of the experts that a router chose. Skips the up rows of silent
//! neurons.

use std::ops::Range;

use thermocline_shaders::{limits::SPARSE_NEURONS, params};

use super::{Buffer, Gpu, GpuMatrix, Op, Recorder, grid};
use thermocline_base::error::{Error, Result};

/// Invocations in a workgroup, and invocations that share the rows of two neurons.
const WORKGROUP: u32 = 128;
const LANES: u32 = 32;

/// Inputs and output of an [`ExpertGateUp`].
#[derive(Debug, Clone, Copy)]
pub struct GateFirst<'a> {
    /// Activations.
    pub x: &'a Buffer,
    /// Elements from one row of `x` to the next, as in [`ExpertInput`](super::ExpertInput).
    pub x_pitch: usize,
    /// Consecutive pairs that read the same row of `x`.
    pub pairs_per_row: usize,
    /// Place of the expert of each pair.
    pub places: &'a Buffer,
    /// Bias: one number per row of every expert of the matrix.
    pub bias: Option<&'a Buffer>,
    /// Constants for `activation.wgsl`, by name.
    pub activation: [(&'static str, f64); 2],
    /// Neurons of an expert.
    pub neurons: usize,
    /// Gates of all pairs, and the elements from one pair to the next. Used if the matrix has only
    /// up rows.
    pub gates: Option<(&'a Buffer, usize)>,
    /// Output, and the elements from one pair to the next.
    pub hidden: (&'a Buffer, usize),
}

/// `hidden[s, j] = f(gate[place[s], j] . x) * (up[place[s], j] . x)`, or 0 if the magnitude of the
/// gate's activation is not above a threshold. The up rows of such neurons are not read. The output
/// of pairs whose expert is not in the matrix stays unchanged.
#[derive(Debug, Clone)]
pub struct ExpertGateUp {
    parts: Vec<GateUpPart>,
    max_groups: u32,
}

#[derive(Debug, Clone)]
struct GateUpPart {
    /// Parameters. Recording fills in the number of pairs and the threshold.
    params: params::ExpertGateUp,
    op: Op,
}

impl ExpertGateUp {
    /// Prepares the kernel for `matrix`, which holds the experts of `places` one after another.
    /// Each expert has its gate rows and then its up rows, or only up rows.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a part does not hold whole experts or the experts have other sizes.
    /// [`Error::Gpu`] if the device is lost or the kernel does not compile. [`Error::Memory`] if a
    /// buffer is larger than a binding.
    pub fn new(gpu: &Gpu, matrix: &GpuMatrix, places: Range<usize>, input: &GateFirst<'_>) -> Result<Self> {
        let rows = input.neurons * if input.gates.is_some() { 1 } else { 2 };
        let misaligned = matrix.parts().iter().any(|part| !part.rows().start.is_multiple_of(rows.max(1)));
        if rows == 0 || rows * places.len() != matrix.rows() || misaligned || input.pairs_per_row == 0 {
            let got = format!("{} rows for {} experts of {} neurons", matrix.rows(), places.len(), input.neurons);
            return Err(Error::invalid("gate and up matrices of experts", "rows of whole experts", got));
        }
        let switch = |on: bool| f64::from(u8::from(on));
        let [kind, limit] = input.activation;
        let overrides = [
            kind,
            limit,
            ("GATES_KNOWN", switch(input.gates.is_some())),
            ("HAS_BIAS", switch(input.bias.is_some())),
            ("LANES", f64::from(LANES)),
        ];
        let pipeline = gpu.pipelines().get("expert_gate_up", Some(matrix.ty()), WORKGROUP, &overrides)?;
        let (gates, gates_pitch) = input.gates.unwrap_or((gpu.nothing(), 0));
        let parts = matrix.parts().iter().map(|part| {
            let bindings = [
                part.main(),
                part.aux(gpu.nothing()),
                input.x.into(),
                input.bias.unwrap_or(gpu.nothing()).into(),
                input.places.into(),
                gates.into(),
                input.hidden.0.into(),
            ];
            let params = params::ExpertGateUp {
                neurons: input.neurons as u32,
                rows: rows as u32,
                up_at: (rows - input.neurons) as u32,
                chunks: matrix.chunks() as u32,
                pairs: 0,
                pairs_per_row: input.pairs_per_row as u32,
                x_pitch: input.x_pitch as u32,
                gates_pitch: gates_pitch as u32,
                hidden_pitch: input.hidden.1 as u32,
                first_expert: (places.start + part.rows().start / rows) as u32,
                experts: (part.rows().len() / rows) as u32,
                first_bias: places.start as u32,
                stride: 0,
                threshold: 0.0,
            };
            Ok(GateUpPart { params, op: Op::new(gpu, &pipeline, &bindings)? })
        });
        Ok(ExpertGateUp { parts: parts.collect::<Result<_>>()?, max_groups: gpu.caps().max_groups })
    }

    /// Records the computation of the hidden activations of the first `pairs` pairs.
    pub fn record(&self, recorder: &mut Recorder, pairs: usize, threshold: f32) {
        for part in &self.parts {
            // A device may narrow the requested workgroup.
            let neurons = SPARSE_NEURONS * part.op.pipeline().workgroup() / LANES;
            let [a, b] = grid(part.params.neurons.div_ceil(neurons) as usize, self.max_groups);
            let params = params::ExpertGateUp { pairs: pairs as u32, stride: a, threshold, ..part.params };
            recorder.dispatch(&part.op, &params, [a, b, pairs as u32]);
        }
    }
}
