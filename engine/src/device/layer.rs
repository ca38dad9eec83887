//! One layer of a model on a device, but for its FFN: its steps, prepared.

use std::sync::Arc;

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
    model::{AltupStep, BoundOperation, BoundStep, FfnWeights, Model, Register},
};

/// Buffers that the layers share: of attention, of recurrent mixers, of inputs that layers have of their own, of streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerBuffers<'a> {
    pub registers: &'a Registers,
    pub attention: &'a AttentionBuffers,
    pub recurrent: &'a RecurrentBuffers,
    pub per_layer: Option<&'a PerLayerBuffers>,
    pub altup: Option<&'a AltupBuffers>,
    /// Another layer's dense FFN beside experts, whose buffers are reused where they fit.
    pub dense: Option<&'a DenseFfn>,
}

/// A step in its prepared form, bound to its registers.
#[derive(Debug)]
pub(crate) enum GpuStep {
    Norm {
        op: NormOp,
        /// True if it reads or writes the residual stream or `Out`.
        touches_stream: bool,
    },
    Attention(Box<AttentionOps>),
    Recurrent(Box<RecurrentOps>),
    /// The router or the FFN, which may be here in part ([`DeviceFfn`](super::device_ffn::DeviceFfn)).
    Ffn,
    DenseFfn(Box<DenseFfn>),
    Add(Elementwise),
    AddOut,
    PerLayerInput(Box<PerLayerOps>),
    Altup {
        step: AltupStep,
        /// Those of all such steps of the layer.
        ops: Arc<AltupOps>,
    },
    Scale(f32),
}

impl GpuStep {
    /// True if an addition to the residual stream that was put off has to come first. Other steps do not touch the stream, or add on the
    /// way.
    pub fn waits_for_sum(&self) -> bool {
        match self {
            GpuStep::Norm { op, touches_stream } => *touches_stream && !op.adds(),
            GpuStep::Scale(_) => false,
            _ => true,
        }
    }
}

/// The prepared steps of one layer, in the order of its program.
#[derive(Debug)]
pub(crate) struct GpuLayer {
    pub steps: Vec<GpuStep>,
}

impl GpuLayer {
    /// Uploads `layer` of `model` and prepares its steps.
    pub fn new(loader: &mut GpuLoader<'_, '_>, buffers: LayerBuffers<'_>, model: &Model, layer: usize) -> Result<Self> {
        let mut steps = Vec::new();
        for step in model.steps(layer) {
            let prepared = buffers.prepare(loader, &step?, &steps)?;
            steps.push(prepared);
        }
        Ok(GpuLayer { steps })
    }

    /// Attention, if the layer has one.
    pub fn attention(&self) -> Option<&AttentionOps> {
        self.steps.iter().find_map(|step| match step {
            GpuStep::Attention(ops) => Some(&**ops),
            _ => None,
        })
    }

    /// The recurrent mixer, if the layer has one.
    pub fn recurrent(&self) -> Option<&RecurrentOps> {
        self.steps.iter().find_map(|step| match step {
            GpuStep::Recurrent(ops) => Some(&**ops),
            _ => None,
        })
    }

    /// The dense FFN beside experts, if the layer has one.
    pub fn dense(&self) -> Option<&DenseFfn> {
        self.steps.iter().find_map(|step| match step {
            GpuStep::DenseFfn(ffn) => Some(&**ffn),
            _ => None,
        })
    }
}

impl LayerBuffers<'_> {
    /// Uploads the weights of a step and prepares it. `before` are the steps before it in its layer.
    fn prepare(&self, loader: &mut GpuLoader<'_, '_>, step: &BoundStep<'_>, before: &[GpuStep]) -> Result<GpuStep> {
        let registers = self.registers;
        let out = registers.rows(Register::Out);
        Ok(match step.operation {
            BoundOperation::Norm { norm, from, into, .. } => {
                let norm = NormWeights::new(loader, norm)?;
                let adds = from == Register::Residual && into != Register::Out;
                let delta = adds.then(|| registers.get(Register::Out));
                let op = NormOp::new(loader, &norm, registers.get(from), delta, registers.get(into))?;
                let touches_stream = [from, into].iter().any(|it| matches!(it, Register::Residual | Register::Out));
                GpuStep::Norm { op, touches_stream }
            }
            BoundOperation::Attention(attention) => {
                GpuStep::Attention(Box::new(AttentionOps::new(loader, self.attention, attention, registers)?))
            }
            BoundOperation::Recurrent(recurrent) => {
                GpuStep::Recurrent(Box::new(RecurrentOps::new(loader, self.recurrent, recurrent, registers)?))
            }
            BoundOperation::Route { .. } | BoundOperation::Ffn(_) => GpuStep::Ffn,
            BoundOperation::DenseFfn { weights, from } => {
                GpuStep::DenseFfn(Box::new(self.dense_ffn(loader, weights, from)?))
            }
            BoundOperation::Add { from, into } => {
                let of = [registers.get(into), registers.get(from)];
                GpuStep::Add(Elementwise::new(loader.gpu, "add", &[], &of, registers.d_model, registers.pitch)?)
            }
            BoundOperation::AddOut => GpuStep::AddOut,
            BoundOperation::PerLayerInput(weights) => {
                let buffers = self.per_layer.ok_or_else(no_buffers)?;
                let ops = PerLayerOps::new(loader, buffers, weights, registers.get(Register::Residual), out)?;
                GpuStep::PerLayerInput(Box::new(ops))
            }
            BoundOperation::Altup { step, weights } => {
                let known = before.iter().find_map(|step| match step {
                    GpuStep::Altup { ops, .. } => Some(Arc::clone(ops)),
                    _ => None,
                });
                let new =
                    || AltupOps::new(loader, self.altup.ok_or_else(no_buffers)?, weights, registers).map(Arc::new);
                GpuStep::Altup { step, ops: known.map_or_else(new, Ok)? }
            }
            BoundOperation::Scale(factor) => GpuStep::Scale(factor),
        })
    }

    fn dense_ffn(&self, loader: &mut GpuLoader<'_, '_>, weights: &FfnWeights, from: Register) -> Result<DenseFfn> {
        let (n_ff, gated) = (weights.up.weight.rows(), weights.gate.is_some());
        let buffers = match self.dense.map(|before| &before.buffers).filter(|buffers| buffers.fits(n_ff, gated)) {
            Some(buffers) => buffers.clone(),
            None => FfnBuffers::new(loader, loader.chunk, n_ff, gated)?,
        };
        let (from, out) = (self.registers.get(from), self.registers.rows(Register::Out));
        DenseFfn::new(loader, self.dense, &buffers, weights, from, out)
    }
}

/// The error of a part for which no buffers were made: the configuration does not name it.
pub(crate) fn no_buffers() -> Error {
    Error::invalid("layer on the GPU", "parts that the configuration names", "others")
}
