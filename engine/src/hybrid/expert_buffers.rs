//! Scratch buffers of MoE layers. A slot is a token and one of the experts it uses.

use crate::{
    error::Result,
    gpu::{Buffer, ExpertGroups, Gpu, Op, Recorder, params, pitch},
    model::Experts,
    runtime::gpu::{
        Loader,
        elementwise::{WORKGROUP, flat_grid},
        ffn::FfnBuffers,
    },
};

/// Invocations of `route`, one workgroup of which takes a token.
const ROUTE_WORKGROUP: u32 = 64;

/// Activations of an MoE layer; layers share them.
#[derive(Debug, Clone)]
pub(crate) struct ExpertBuffers {
    /// `[chunk, pitch(experts)]`
    pub scores: Buffer,
    /// `[slots]` u32: the expert, and its place among those on the device ([`NO_NEURON`](thermocline_shaders::limits::NO_NEURON) if
    /// it is not there).
    pub ids: Buffer,
    pub places: Buffer,
    /// `[slots]` f32: the expert's router weight.
    pub router_weights: Buffer,
    pub groups: ExpertGroups,
    /// One row per slot.
    pub ffn: FfnBuffers,
    /// `[slots, row]`
    pub outputs: Buffer,
    /// Elements of a row of outputs.
    pub row: usize,
    pub shared: Option<SharedBuffers>,
    combine: Op,
    experts: Experts,
    d_model: usize,
}

/// Activations of the shared expert.
#[derive(Debug, Clone)]
pub(crate) struct SharedBuffers {
    /// `[chunk, 32]`, of which the first element counts.
    pub gate: Buffer,
    pub ffn: FfnBuffers,
    /// `[chunk, pitch(d_model)]`
    pub output: Buffer,
}

impl ExpertBuffers {
    /// With a shared expert of `shared_ff` neurons, or none. Sums go to `out`.
    pub fn new(loader: &Loader<'_, '_>, experts: &Experts, shared_ff: Option<usize>, out: &Buffer) -> Result<Self> {
        let (gpu, chunk, d_model) = (loader.gpu, loader.chunk, loader.config.d_model);
        let (slots, row) = (chunk * experts.used, pitch(d_model));
        let scores = loader.scratch("scores of experts", chunk * pitch(experts.count))?;
        let ids = loader.scratch("chosen experts", slots)?;
        let places = loader.scratch("places of chosen experts", slots)?;
        let router_weights = loader.scratch("router weights", slots)?;
        let groups = ExpertGroups::new(gpu, &places, slots, experts.count)?;
        let ffn = FfnBuffers::new(loader, slots, experts.n_ff, true)?;
        let outputs = loader.scratch("outputs of experts", slots * row)?;
        let shared = shared_ff.map(|n_ff| {
            Ok(SharedBuffers {
                gate: loader.scratch("gate of the shared expert", chunk * pitch(1))?,
                ffn: FfnBuffers::new(loader, chunk, n_ff, true)?,
                output: loader.scratch("output of the shared expert", chunk * row)?,
            })
        });
        let shared: Option<SharedBuffers> = shared.transpose()?;
        let with_shared = [("SHARED", f64::from(u8::from(shared.is_some())))];
        let combine = gpu.pipelines().get("combine", None, WORKGROUP, &with_shared)?;
        let nothing = gpu.nothing();
        let (shared_output, shared_gate) =
            shared.as_ref().map_or((nothing, nothing), |shared| (&shared.output, &shared.gate));
        let bindings = [&outputs, &router_weights, &places, shared_output, shared_gate, out].map(Into::into);
        let combine = Op::new(gpu, &combine, &bindings)?;
        let experts = *experts;
        Ok(ExpertBuffers {
            scores,
            ids,
            places,
            router_weights,
            groups,
            ffn,
            outputs,
            row,
            shared,
            combine,
            experts,
            d_model,
        })
    }

    /// True if they are those of a layer with such a shared expert.
    pub fn fits(&self, shared_ff: Option<usize>) -> bool {
        self.shared.as_ref().map(|shared| shared.ffn.n_ff) == shared_ff
    }

    /// The router's choice of experts, whose places are in `table`, prepared.
    pub fn route_op(&self, gpu: &Gpu, table: &Buffer) -> Result<Op> {
        let route = gpu.pipelines().get("route", None, ROUTE_WORKGROUP, &[])?;
        Op::new(gpu, &route, &[&self.scores, table, &self.ids, &self.places, &self.router_weights].map(Into::into))
    }

    /// Records that choice.
    pub fn route(&self, recorder: &mut Recorder, op: &Op, tokens: usize) {
        let params = params::Route {
            experts: self.experts.count as u32,
            pitch: pitch(self.experts.count) as u32,
            used: self.experts.used as u32,
            tokens: tokens as u32,
            renormalise: u32::from(self.experts.renormalise),
        };
        recorder.dispatch(op, &params, [tokens as u32, 1, 1]);
    }

    /// Records `out =` the weighted sum of the outputs of the experts in the first `resident` places and of the shared expert, and with
    /// `add` of what is in `out`.
    pub fn combine(&self, gpu: &Gpu, recorder: &mut Recorder, tokens: usize, resident: usize, add: bool) {
        let (grid, stride) = flat_grid(gpu, tokens * self.d_model, self.combine.pipeline().workgroup());
        let params = params::Combine {
            cols: self.d_model as u32,
            pitch: self.row as u32,
            tokens: tokens as u32,
            used: self.experts.used as u32,
            gate_pitch: pitch(1) as u32,
            resident: resident as u32,
            add: u32::from(add),
            stride,
        };
        recorder.dispatch(&self.combine, &params, grid);
    }
}
