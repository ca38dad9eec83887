//! One layer of a model on a device, but for its FFN: prepared norms and attention.

use super::{
    altup::{AltupBuffers, AltupOps},
    attention::{AttentionBuffers, AttentionOps},
    elementwise::Elementwise,
    ffn::{DenseFfn, FfnBuffers},
    loader::GpuLoader,
    norm::{NormOp, NormWeights},
    per_layer::{PerLayerBuffers, PerLayerOps},
    recurrent::{RecurrentBuffers, RecurrentOps},
    registers::Registers,
};
use crate::{
    error::{Error, Result},
    model::{Model, NormSlot, Register, Step},
};

/// A norm of a layer's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NormStep {
    pub norm: NormSlot,
    /// The register that it reads.
    pub from: Register,
    /// The register that it writes.
    pub into: Register,
}

/// Buffers that the layers share: of attention, of recurrent mixers, of inputs that layers have of their own, of streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerBuffers<'a> {
    pub attention: &'a AttentionBuffers,
    pub recurrent: &'a RecurrentBuffers,
    pub per_layer: Option<&'a PerLayerBuffers>,
    pub altup: Option<&'a AltupBuffers>,
}

/// The prepared steps of one layer around its FFN.
#[derive(Debug)]
pub(crate) struct GpuLayer {
    pub norms: Vec<(NormStep, NormOp)>,
    pub attention: Option<AttentionOps>,
    pub per_layer: Option<PerLayerOps>,
    pub recurrent: Option<RecurrentOps>,
    /// Steps between streams.
    pub altup: Option<AltupOps>,
    /// Dense FFN beside the experts.
    pub dense: Option<DenseFfn>,
    /// Sums of registers, the second of which is the sum.
    pub sums: Vec<((Register, Register), Elementwise)>,
    /// Input of attention or of the recurrent mixer.
    pub mixer_from: Register,
    pub ffn_from: Register,
    /// Input of the router, where experts are chosen ahead of the FFN.
    pub router_from: Option<Register>,
    /// The norm whose output the FFN reads; the predictor runs right behind it.
    pub feeds_ffn: Option<NormStep>,
    /// True if the residual stream is still the input of that norm when the FFN begins.
    pub keeps_residual: bool,
}

impl GpuLayer {
    /// Uploads `layer` of `model` and prepares its steps. `before` is another layer's dense FFN, whose buffers are reused where they
    /// fit.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        registers: &Registers,
        buffers: LayerBuffers<'_>,
        model: &Model,
        layer: usize,
        before: Option<&DenseFfn>,
    ) -> Result<Self> {
        let LayerBuffers { attention, recurrent, per_layer, altup } = buffers;
        let (shape, weights) = (&model.config.layers[layer], &model.weights.layers[layer]);
        let (mut norms, mut mixer_from, mut ffn_from) = (Vec::new(), Register::Normed, Register::Normed);
        let (mut sums, mut dense_from) = (Vec::new(), Register::Normed);
        let out = registers.rows(Register::Out);
        let mut feeds_ffn: Option<NormStep> = None;
        for step in shape.steps.iter() {
            match *step {
                Step::Norm { norm, from, into } => {
                    let Some(of) = weights.norm(norm) else { return Err(no_norm(layer, norm)) };
                    let of = NormWeights::new(loader, of)?;
                    let adds = from == Register::Residual && into != Register::Out;
                    let delta = adds.then(|| registers.get(Register::Out));
                    let op = NormOp::new(loader, &of, registers.get(from), delta, registers.get(into))?;
                    norms.push((NormStep { norm, from, into }, op));
                }
                Step::Attention { from } | Step::Recurrent { from } => mixer_from = from,
                Step::Ffn { from } => {
                    let feeding = norms.iter().rev().find(|(step, _): &&(NormStep, NormOp)| step.into == from);
                    (ffn_from, feeds_ffn) = (from, feeding.map(|(step, _)| *step));
                }
                Step::DenseFfn { from } => dense_from = from,
                Step::Add { from, into } => {
                    let (of, cols, pitch) =
                        ([registers.get(into), registers.get(from)], registers.d_model, registers.pitch);
                    sums.push(((from, into), Elementwise::new(loader.gpu, "add", &[], &of, cols, pitch)?));
                }
                Step::Route { .. } | Step::AddOut | Step::PerLayerInput | Step::Scale | Step::Altup(_) => {}
            }
        }
        let router_from = shape.early_router_input();
        for from in [mixer_from, ffn_from, dense_from].into_iter().chain(router_from) {
            if from == Register::Out {
                return Err(Error::invalid("layer program", "products that do not read `Out`", format!("{from:?}")));
            }
        }
        let from = registers.get(mixer_from);
        let of = shape.attention.as_ref().zip(weights.attention.as_ref());
        let heads_norm = weights.norm(NormSlot::Heads);
        let attention = of.map(|(shape, of)| AttentionOps::new(loader, attention, shape, of, heads_norm, from, out));
        let attention = attention.transpose()?;
        let of = shape.recurrent.as_ref().zip(weights.recurrent.as_ref());
        let of = of.map(|(of, weights)| RecurrentOps::new(loader, recurrent, layer, of, weights, from, out));
        let recurrent = of.transpose()?;
        let residual = registers.get(Register::Residual);
        let per_layer = per_layer.zip(weights.per_layer.as_ref());
        let per_layer =
            per_layer.map(|(buffers, of)| PerLayerOps::new(loader, buffers, of, residual, out)).transpose()?;
        let altup = altup.zip(weights.altup.as_deref());
        let altup = altup.map(|(buffers, of)| AltupOps::new(loader, buffers, of, registers)).transpose()?;
        let dense = match &weights.beside_experts {
            Some(ffn) => {
                let (n_ff, gated) = (ffn.up.weight.rows(), ffn.gate.is_some());
                let buffers = match before.map(|before| &before.buffers).filter(|buffers| buffers.fits(n_ff, gated)) {
                    Some(buffers) => buffers.clone(),
                    None => FfnBuffers::new(loader, loader.chunk, n_ff, gated)?,
                };
                Some(DenseFfn::new(loader, before, &buffers, ffn, registers.get(dense_from), out)?)
            }
            None => None,
        };
        let keeps_residual = shape.early_ffn_input().is_none();
        Ok(GpuLayer {
            norms,
            attention,
            per_layer,
            recurrent,
            altup,
            dense,
            sums,
            mixer_from,
            ffn_from,
            router_from,
            feeds_ffn,
            keeps_residual,
        })
    }
}

/// The error of a norm that the layer does not have.
pub(crate) fn no_norm(layer: usize, norm: NormSlot) -> Error {
    Error::invalid("layer program", "norms the model has", format!("{norm:?} in layer {layer}"))
}

/// The error of a recurrent mixer that the layer does not have.
pub(crate) fn no_recurrence(layer: usize) -> Error {
    Error::invalid("layer program", "a recurrent mixer that the model has", format!("one in layer {layer}"))
}

/// The error of attention that the layer does not have.
pub(crate) fn no_attention(layer: usize) -> Error {
    Error::invalid("layer program", "attention that the model has", format!("attention in layer {layer}"))
}

/// The error of an input of its own that the layer does not have.
pub(crate) fn no_per_layer(layer: usize) -> Error {
    Error::invalid("layer program", "an input of the layer's own that the model has", format!("none in layer {layer}"))
}

/// The error of a dense FFN beside experts that the layer does not have.
pub(crate) fn no_dense_ffn(layer: usize) -> Error {
    let got = format!("none in layer {layer}");
    Error::invalid("layer program", "a dense FFN beside experts that the model has", got)
}

/// The error of several streams that the model does not have.
pub(crate) fn no_streams(layer: usize) -> Error {
    Error::invalid("layer program", "several streams that the model has", format!("some in layer {layer}"))
}

/// Refuses a step that reads another register than it was prepared for.
pub(crate) fn same(prepared: Register, asked: Register) -> Result<()> {
    if prepared == asked {
        return Ok(());
    }
    Err(Error::invalid("layer program", format!("a step that reads {prepared:?}"), format!("{asked:?}")))
}
