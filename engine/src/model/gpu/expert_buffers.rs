//! Temporaries of mixtures, which layers share. A slot is a token and one of the experts it uses.

use super::{
    elementwise::{WORKGROUP, flat_grid},
    ffn::Hidden,
    loader::Loader,
};
use crate::{
    error::Result,
    gpu::{Buffer, ExpertGroups, Gpu, Op, Recorder, params, pitch},
    model::Experts,
};

/// Invocations of `route`, one workgroup of which takes a token.
const ROUTE_WORKGROUP: u32 = 64;

/// Where a mixture's activations are.
#[derive(Debug, Clone)]
pub(super) struct ExpertBuffers {
    /// `[chunk, pitch(experts)]`
    pub scores: Buffer,
    /// `[slots]`: which expert, where that is among those on the device, and its share.
    pub ids: Buffer,
    pub places: Buffer,
    pub shares: Buffer,
    pub groups: ExpertGroups,
    /// Of slots.
    pub hidden: Hidden,
    /// `[slots, row]`
    pub outputs: Buffer,
    /// Elements of a row of outputs.
    pub row: usize,
    pub shared: Option<SharedBuffers>,
    combine: Op,
    experts: Experts,
    d_model: usize,
}

/// Those of the expert that every token passes through.
#[derive(Debug, Clone)]
pub(super) struct SharedBuffers {
    /// `[chunk, 32]`, of which the first element counts.
    pub gate: Buffer,
    pub hidden: Hidden,
    /// `[chunk, pitch(d_model)]`
    pub output: Buffer,
}

impl ExpertBuffers {
    /// With a shared expert of so many neurons, or none. Sums go to `out`.
    pub fn new(loader: &Loader<'_, '_>, experts: &Experts, shared_ff: Option<usize>, out: &Buffer) -> Result<Self> {
        let (gpu, chunk, d_model) = (loader.gpu, loader.chunk, loader.config.d_model);
        let (slots, row) = (chunk * experts.used, pitch(d_model));
        let scores = loader.scratch("scores of experts", chunk * pitch(experts.count))?;
        let ids = loader.scratch("chosen experts", slots)?;
        let places = loader.scratch("places of chosen experts", slots)?;
        let shares = loader.scratch("shares of experts", slots)?;
        let groups = ExpertGroups::new(gpu, &places, slots, experts.count)?;
        let hidden = Hidden::new(loader, slots, experts.n_ff, true)?;
        let outputs = loader.scratch("outputs of experts", slots * row)?;
        let shared = shared_ff.map(|n_ff| {
            Ok(SharedBuffers {
                gate: loader.scratch("gate of the shared expert", chunk * pitch(1))?,
                hidden: Hidden::new(loader, chunk, n_ff, true)?,
                output: loader.scratch("output of the shared expert", chunk * row)?,
            })
        });
        let shared: Option<SharedBuffers> = shared.transpose()?;
        let with_shared = [("SHARED", f64::from(u8::from(shared.is_some())))];
        let combine = gpu.pipelines().get("combine", None, WORKGROUP, &with_shared)?;
        let nothing = gpu.nothing();
        let (shared_output, shared_gate) =
            shared.as_ref().map_or((nothing, nothing), |shared| (&shared.output, &shared.gate));
        let bindings = [&outputs, &shares, &places, shared_output, shared_gate, out].map(Into::into);
        let combine = Op::new(gpu, &combine, &bindings)?;
        let experts = *experts;
        Ok(ExpertBuffers {
            scores,
            ids,
            places,
            shares,
            groups,
            hidden,
            outputs,
            row,
            shared,
            combine,
            experts,
            d_model,
        })
    }

    /// Whether they are those of a layer with such a shared expert.
    pub fn fits(&self, shared_ff: Option<usize>) -> bool {
        self.shared.as_ref().map(|shared| shared.hidden.n_ff) == shared_ff
    }

    /// Chooses experts, whose places are in `table`.
    pub fn route_op(&self, gpu: &Gpu, table: &Buffer) -> Result<Op> {
        let route = gpu.pipelines().get("route", None, ROUTE_WORKGROUP, &[])?;
        Op::new(gpu, &route, &[&self.scores, table, &self.ids, &self.places, &self.shares].map(Into::into))
    }

    /// Records that.
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

    /// Records the sum of what the experts in the first `resident` places said, the shared expert, and, if they are to be
    /// added, the sums that lie where it goes.
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
