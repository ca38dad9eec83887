//! Scratch buffers of MoE layers. A pair is a token and one of the experts it uses.

use std::ops::Range;

use super::{
    GpuLoader,
    elementwise::{WORKGROUP, flat_grid},
    expert_matrices::ExpertMatrices,
    ffn::{FfnBuffers, FfnShape},
};
use crate::runtime::LayerPreference;
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{
    Buffer, Epilogue, ExpertInput, ExpertMatmul, ExpertPairs, Gpu, GpuMatrix, MatmulOutput, Op, Recorder, params, pitch,
};
use thermocline_model::{ExpertWeights, Experts, RouterScore};

/// Invocations of a `route` workgroup, which computes one token.
const ROUTE_WORKGROUP: u32 = 64;

/// Activations of an MoE layer, shared by all layers.
#[derive(Debug, Clone)]
pub(crate) struct ExpertBuffers {
    /// `[chunk, pitch(experts)]`
    pub scores: Buffer,
    /// `[pairs]` u32: the expert, and its slot
    /// ([`NO_NEURON`](thermocline_shaders::limits::NO_NEURON) if it is not resident).
    pub ids: Buffer,
    pub slots: Buffer,
    /// `[pairs]` f32: the expert's router weight. The range of the router's values for each token
    /// follows the pairs of a pass.
    pub router_weights: Buffer,
    pub groups: ExpertPairs,
    /// One row per pair.
    pub ffn: FfnBuffers,
    /// `[pairs, row]`
    pub outputs: Buffer,
    /// Elements of a row of outputs.
    pub row: usize,
    pub shared: Option<SharedBuffers>,
    /// Buffers of routed experts that work in a latent.
    pub latent: Option<ExpertLatentBuffers>,
    /// `[chunk, pitch(d_model)]`: the router's input, if it differs from the experts' input.
    pub router_input: Option<Buffer>,
    shape: ExpertShape,
    /// Sums the resident experts' outputs, or those of all experts.
    combine: Op,
    combine_all: Op,
    pub experts: Experts,
    /// Elements of a routed expert's output: `d_model`, or the latent's width.
    width: usize,
}

/// Experts of a layer whose weights are in one matrix.
#[derive(Debug, Clone)]
pub(crate) struct PlacedExperts<'a> {
    pub matrix: &'a GpuMatrix,
    /// Places of the experts.
    pub places: Range<usize>,
    pub bias: Option<&'a Buffer>,
    /// Input of gates and ups.
    pub from: &'a Buffer,
}

/// The experts whose outputs are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SummedExperts {
    /// The experts in the first slots.
    Resident(usize),
    /// All experts, because those that are not resident were streamed.
    All,
}

/// Inputs and sum of routed experts that work in a latent.
#[derive(Debug, Clone)]
pub(crate) struct ExpertLatentBuffers {
    /// `[chunk, pitch(latent)]`
    pub x: Buffer,
    /// `[chunk, pitch(latent)]`
    pub sum: Buffer,
}

/// Sizes and forms of the FFNs of an MoE layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpertShape {
    /// True if the routed experts have gates.
    pub gated: bool,
    /// Limit of the hidden values, equal for all routed experts.
    pub limit: Option<f32>,
    pub shared: Option<SharedShape>,
    /// Elements of the latent in which routed experts work.
    pub latent: Option<usize>,
    /// True if the router has an input of its own.
    pub router_input: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SharedShape {
    pub ffn: FfnShape,
    /// True if a gate weights the shared expert's output.
    pub weighed: bool,
}

impl ExpertShape {
    pub fn of(weights: &ExpertWeights) -> Self {
        let shared = weights
            .shared
            .as_ref()
            .map(|shared| SharedShape { ffn: FfnShape::of(&shared.ffn), weighed: shared.gate.is_some() });
        let latent = weights.latent.as_ref().map(|latent| latent.down.weight.rows());
        let limit = weights.experts.first().and_then(|expert| expert.limit);
        ExpertShape { gated: weights.gated(), limit, shared, latent, router_input: weights.router_norm.is_some() }
    }
}

/// Activations of the shared expert.
#[derive(Debug, Clone)]
pub(crate) struct SharedBuffers {
    /// `[chunk, 32]`, of which only the first element is used. `None` if the output is not weighted
    /// by a gate.
    pub gate: Option<Buffer>,
    pub ffn: FfnBuffers,
    /// `[chunk, pitch(d_model)]`
    pub output: Buffer,
}

impl ExpertBuffers {
    /// Makes the buffers for FFNs of `shape`, whose sums go to `out`.
    pub fn new(loader: &GpuLoader<'_, '_>, experts: &Experts, shape: ExpertShape, out: &Buffer) -> Result<Self> {
        let (gpu, chunk, d_model) = (loader.gpu, loader.chunk, loader.config.d_model);
        let width = shape.latent.unwrap_or(d_model);
        let (pairs, row) = (chunk * experts.used, pitch(width));
        let scores = loader.scratch("scores of experts", chunk * pitch(experts.count))?;
        let ids = loader.scratch("chosen experts", pairs)?;
        let slots = loader.scratch("slots of chosen experts", pairs)?;
        let router_weights = loader.scratch("router weights", pairs + chunk)?;
        let groups = ExpertPairs::new(gpu, &slots, pairs, experts.count)?;
        let routed = FfnShape { n_ff: experts.n_ff, gated: shape.gated, limit: shape.limit };
        let ffn = FfnBuffers::new(loader, pairs, routed)?;
        let outputs = loader.scratch("outputs of experts", pairs * row)?;
        let shared = shape.shared.map(|SharedShape { ffn, weighed }| {
            let gate = weighed.then(|| loader.scratch("gate of the shared expert", chunk * pitch(1)));
            Ok(SharedBuffers {
                gate: gate.transpose()?,
                ffn: FfnBuffers::new(loader, chunk, ffn)?,
                output: loader.scratch("output of the shared expert", chunk * pitch(d_model))?,
            })
        });
        let shared: Option<SharedBuffers> = shared.transpose()?;
        let router_input =
            shape.router_input.then(|| loader.scratch("input of the router", chunk * pitch(d_model))).transpose()?;
        let latent = shape.latent.map(|_| {
            let buffer = |what| loader.scratch(what, chunk * row);
            Ok::<_, Error>(ExpertLatentBuffers {
                x: buffer("latents of experts")?,
                sum: buffer("sum of experts in their latent")?,
            })
        });
        let latent = latent.transpose()?;
        // The shared expert's output is added after the latent.
        let (sum, added) = match &latent {
            Some(latent) => (&latent.sum, None),
            None => (out, shared.as_ref()),
        };
        let switch = |on: bool| f64::from(u8::from(on));
        let weighed = added.is_some() && shape.shared.is_some_and(|shared| shared.weighed);
        let with_shared = [("SHARED", switch(added.is_some())), ("GATED", switch(weighed))];
        let nothing = gpu.nothing();
        let shared_output = added.map_or(nothing, |shared| &shared.output);
        let shared_gate = added.and_then(|shared| shared.gate.as_ref()).unwrap_or(nothing);
        let combine = |places: &Buffer| {
            let of = [&outputs, &router_weights, places, shared_output, shared_gate, sum];
            Op::of(gpu, "combine", WORKGROUP, &with_shared, &of)
        };
        let (combine, combine_all) = (combine(&slots)?, combine(&ids)?);
        let experts = *experts;
        Ok(ExpertBuffers {
            scores,
            ids,
            slots,
            router_weights,
            groups,
            ffn,
            outputs,
            row,
            shared,
            latent,
            router_input,
            shape,
            combine,
            combine_all,
            experts,
            width,
        })
    }

    /// True if these buffers suit FFNs of this shape.
    pub fn fits(&self, shape: ExpertShape) -> bool {
        self.shape == shape
    }

    /// Prepares the product of stack `at` of `matrices` with `placed` experts.
    pub fn product(
        &self,
        gpu: &Gpu,
        matrices: &ExpertMatrices<'_>,
        at: usize,
        placed: &PlacedExperts<'_>,
    ) -> Result<ExpertMatmul> {
        let PlacedExperts { matrix, places, bias, from } = placed;
        let is_down = at + 1 == matrices.stacks.len();
        let (x, pairs_per_row) = if is_down { (&self.ffn.hidden, 1) } else { (*from, self.experts.used) };
        let (buffer, row, offset) = match is_down {
            true => (&self.outputs, self.row, 0),
            false => (&self.ffn.gate_up, self.ffn.gate_up_pitch, at * matrices.stacks[at].rows),
        };
        let x_pitch = pitch(matrix.cols());
        let input = ExpertInput { x, x_pitch, pairs_per_row, places: &self.slots, groups: &self.groups, bias: *bias };
        let output = MatmulOutput { buffer, pitch: row, offset, epilogue: Epilogue::Store };
        ExpertMatmul::new(gpu, matrix, places.clone(), &input, &output)
    }

    /// Prepares the router's choice of experts, whose slots are in `table`. `bias` is added to the
    /// scores for the choice only, and `scale` multiplies the experts' weights.
    pub fn route_op(&self, gpu: &Gpu, table: &Buffer, bias: Option<&Buffer>, scale: Option<&Buffer>) -> Result<Op> {
        let score = match self.experts.router.score {
            RouterScore::Softmax => 0.0,
            RouterScore::SoftmaxOfChosen => 1.0,
            RouterScore::Sigmoid => 2.0,
            RouterScore::SparseMixer => 3.0,
        };
        let switch = |on: bool| f64::from(u8::from(on));
        let overrides = [("SCORE", score), ("BIAS", switch(bias.is_some())), ("SCALED", switch(scale.is_some()))];
        let (bias, scale) = (bias.unwrap_or(gpu.nothing()), scale.unwrap_or(gpu.nothing()));
        let out = &self.router_weights;
        let of = [&self.scores, bias, table, &self.ids, &self.slots, out, scale];
        Op::of(gpu, "route", ROUTE_WORKGROUP, &overrides, &of)
    }

    /// Records the router's choice.
    pub fn route(&self, recorder: &mut Recorder, op: &Op, tokens: usize, preference: Option<LayerPreference<'_>>) {
        let router = self.experts.router;
        let groups = router.groups.map_or([0; 3], |groups| [groups.count, groups.used, groups.best].map(|n| n as u32));
        let params = params::Route {
            experts: self.experts.count as u32,
            pitch: pitch(self.experts.count) as u32,
            used: self.experts.used as u32,
            tokens: tokens as u32,
            renormalise: u32::from(router.renormalise),
            groups: groups[0],
            groups_used: groups[1],
            groups_best: groups[2],
            scale: router.scale,
            always: preference.map_or(0, |preference| preference.always as u32),
            lift: preference.map_or(0.0, |preference| preference.lift),
            own: preference.map_or(0.0, |preference| preference.own),
        };
        recorder.dispatch(op, &params, [tokens as u32, 1, 1]);
    }

    /// Records `out =` the weighted sum of the outputs of `experts` and of the shared expert. With
    /// `add`, the sum is added to `out`. If experts work in a latent, the sum is the routed
    /// experts' alone.
    pub fn combine(&self, gpu: &Gpu, recorder: &mut Recorder, tokens: usize, experts: SummedExperts, add: bool) {
        let (op, resident) = match experts {
            SummedExperts::Resident(slots) => (&self.combine, slots),
            SummedExperts::All => (&self.combine_all, self.experts.count),
        };
        let (grid, stride) = flat_grid(gpu, tokens * self.width, op.pipeline().workgroup());
        let params = params::Combine {
            cols: self.width as u32,
            pitch: self.row as u32,
            tokens: tokens as u32,
            used: self.experts.used as u32,
            gate_pitch: pitch(1) as u32,
            resident: resident as u32,
            add: u32::from(add),
            stride,
        };
        recorder.dispatch(op, &params, grid);
    }
}
