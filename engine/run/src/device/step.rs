//! A step of a layer on a device: its preparation when the layer is loaded, and its recording in a
//! pass. Each part has an arm in both.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    GpuKv, GpuState, Segment,
    altup::AltupOps,
    attention::{AttentionOps, CacheRows},
    elementwise::Elementwise,
    ffn::{DenseFfn, FfnBuffers, FfnShape},
    layer::GpuLayer,
    loader::GpuLoader,
    norm::{NormOp, NormWeights},
    part_buffers::{PartBuffers, no_buffers},
    per_layer::PerLayerOps,
    recurrent::RecurrentOps,
    registers::Registers,
    state::GpuRowsState,
};
use crate::runtime::Sequences;
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Gpu, WorkKind, work_of};
use thermocline_model::{AltupStep, BoundOperation, BoundStep, FfnWeights, Register};

/// The buffers for which a layer's steps are prepared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerBuffers<'a> {
    pub registers: &'a Registers,
    pub parts: &'a PartBuffers,
    /// All other layers. Buffers of dense FFNs beside experts are shared with them if they fit.
    pub others: &'a [GpuLayer],
}

/// The context in which a step is recorded.
#[derive(Debug)]
pub(crate) struct StepContext<'a> {
    pub gpu: &'a Gpu,
    pub segment: &'a mut Segment,
    pub registers: &'a Registers,
    pub parts: &'a PartBuffers,
    /// Index of the layer in the model, and index among the layers on the device.
    pub layer: usize,
    pub at: usize,
    /// Tokens of the chunk.
    pub tokens: usize,
    /// True if `Residual += Out` is still due.
    pub due: &'a mut bool,
}

/// A step in its prepared form, bound to its registers.
#[derive(Debug)]
pub(crate) enum GpuStep {
    Norm {
        op: NormOp,
        /// True if the step reads or writes the residual stream or `Out`.
        touches_stream: bool,
    },
    Attention(Box<AttentionOps>),
    Recurrent(Box<RecurrentOps>),
    /// The router or the FFN, which may be partly on the device
    /// ([`DeviceFfn`](super::device_ffn::DeviceFfn)).
    Ffn,
    DenseFfn(Box<DenseFfn>),
    Add(Elementwise),
    AddOut,
    PerLayerInput(Box<PerLayerOps>),
    Altup {
        step: AltupStep,
        /// The operations of all AltUp steps of the layer.
        ops: Arc<AltupOps>,
    },
    Scale(f32),
}

impl GpuStep {
    /// Uploads the weights of a step and prepares it. `before` are the earlier steps of its layer.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: LayerBuffers<'_>,
        step: &BoundStep<'_>,
        before: &[GpuStep],
    ) -> Result<Self> {
        let LayerBuffers { registers, parts, .. } = buffers;
        let out = registers.rows(Register::Out);
        Ok(match step.operation {
            BoundOperation::Norm { norm, from, into, .. } => {
                let norm = NormWeights::new(loader, norm)?;
                let adds = from == Register::Residual && !matches!(into, Register::Out | Register::Residual);
                let delta = adds.then(|| registers.get(Register::Out));
                let op = NormOp::new(loader, &norm, registers.get(from), delta, registers.get(into))?;
                let touches_stream = [from, into].iter().any(|it| matches!(it, Register::Residual | Register::Out));
                GpuStep::Norm { op, touches_stream }
            }
            BoundOperation::Attention(attention) => {
                GpuStep::Attention(Box::new(AttentionOps::new(loader, &parts.attention, attention, registers)?))
            }
            BoundOperation::Recurrent(recurrent) => {
                GpuStep::Recurrent(Box::new(RecurrentOps::new(loader, &parts.recurrent, recurrent, registers)?))
            }
            BoundOperation::Route { .. } | BoundOperation::Ffn(_) => GpuStep::Ffn,
            BoundOperation::DenseFfn { weights, from } => {
                GpuStep::DenseFfn(Box::new(buffers.dense_ffn(loader, weights, from)?))
            }
            BoundOperation::Add { from, into } => {
                let of = [registers.get(into), registers.get(from)];
                GpuStep::Add(Elementwise::new(loader.gpu, "add", &[], &of, registers.d_model, registers.pitch)?)
            }
            BoundOperation::AddOut => GpuStep::AddOut,
            BoundOperation::PerLayerInput(weights) => {
                let buffers = parts.per_layer.as_ref().ok_or_else(no_buffers)?;
                let ops = PerLayerOps::new(loader, buffers, weights, registers.get(Register::Residual), out)?;
                GpuStep::PerLayerInput(Box::new(ops))
            }
            BoundOperation::Altup { step, weights } => {
                let known = before.iter().find_map(|step| match step {
                    GpuStep::Altup { ops, .. } => Some(Arc::clone(ops)),
                    _ => None,
                });
                let new = || {
                    AltupOps::new(loader, parts.altup.as_ref().ok_or_else(no_buffers)?, weights, registers)
                        .map(Arc::new)
                };
                GpuStep::Altup { step, ops: known.map_or_else(new, Ok)? }
            }
            BoundOperation::Scale(factor) => GpuStep::Scale(factor),
        })
    }

    /// True if a deferred addition to the residual stream must come first. Other steps do not use
    /// the stream, or they add `Out` themselves.
    pub fn waits_for_sum(&self) -> bool {
        match self {
            GpuStep::Norm { op, touches_stream } => *touches_stream && !op.adds(),
            GpuStep::Scale(_) => false,
            _ => true,
        }
    }

    /// Records the step. For a router or an FFN this is only the preparation of its input, which a
    /// [`DeviceFfn`](super::device_ffn::DeviceFfn) reads.
    pub fn record(&self, context: StepContext<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        let StepContext { gpu, segment, registers, parts, layer, at, tokens, due } = context;
        let kind = WorkKind::of(tokens);
        match self {
            GpuStep::Norm { op, .. } => {
                op.record(segment.recorder(), tokens, *due);
                *due &= !op.adds();
                return Ok(());
            }
            GpuStep::Attention(ops) => {
                let mut caches: SmallVec<[CacheRows<'_>; 1]> = SmallVec::new();
                for (rows, kv) in sequences.iter_mut() {
                    let kv = &*kv;
                    let cache = kv.rows_off_host(layer).ok_or_else(|| not_here("KV cache", layer))?;
                    let cache = cache.of::<GpuKv>()?;
                    let (position, capacity) = (kv.len(), cache.room());
                    let pictures = kv.pictures().among(position..position + rows.len());
                    let pictures = pictures.filter(|_| ops.layout.shape.whole_pictures).collect();
                    caches.push(CacheRows { rows, pages: &cache.pages, position, capacity, pictures });
                }
                ops.record(segment, gpu, &parts.attention, &caches, tokens)?;
            }
            GpuStep::Recurrent(ops) => {
                let mut states: SmallVec<[GpuRowsState<'_>; 1]> = SmallVec::new();
                for (rows, kv) in sequences.iter_mut() {
                    let absent = || not_here("recurrent state", layer);
                    let of = kv.states.as_mut().ok_or_else(absent)?;
                    let planes = of.saved_planes();
                    let state = of.advance_layer_off_host(layer).ok_or_else(absent)?;
                    states.push(state.of::<GpuState>()?.advanced_by(rows, planes));
                }
                segment.expect(kind, work_of(ops.work(), tokens))?;
                ops.record(segment.recorder(), &states, tokens);
            }
            GpuStep::Ffn => return Ok(()),
            GpuStep::DenseFfn(ffn) => {
                segment.expect(kind, work_of(ffn.work(), tokens))?;
                ffn.record(segment.recorder(), tokens, None);
            }
            GpuStep::Add(sum) => {
                sum.record(segment.recorder(), tokens);
                return Ok(());
            }
            // Deferred until a step reads the stream: usually the next norm, which adds `Out` while
            // it reads.
            GpuStep::AddOut => {
                *due = true;
                return Ok(());
            }
            GpuStep::PerLayerInput(ops) => {
                segment.expect(kind, work_of(ops.work(), tokens))?;
                ops.record(gpu, segment.recorder(), tokens, at);
            }
            GpuStep::Altup { step, ops } => {
                // Counted once per layer.
                if *step == AltupStep::Laurel {
                    segment.expect(kind, work_of(ops.work(), tokens))?;
                }
                ops.record(segment.recorder(), *step, tokens);
            }
            GpuStep::Scale(factor) => {
                let add = std::mem::take(due);
                registers.record_scale(gpu, segment.recorder(), tokens, add, *factor);
                return Ok(());
            }
        }
        segment.worked()
    }

    /// Multiply-adds per token in the step's matrices, counting only matrices that are submitted
    /// together.
    pub fn work(&self) -> u64 {
        match self {
            GpuStep::Attention(ops) => ops.work(),
            GpuStep::Recurrent(ops) => ops.work(),
            GpuStep::DenseFfn(ffn) => ffn.work(),
            GpuStep::PerLayerInput(ops) => ops.work(),
            GpuStep::Altup { ops, .. } => ops.work(),
            GpuStep::Norm { .. } | GpuStep::Ffn | GpuStep::Add(_) | GpuStep::AddOut | GpuStep::Scale(_) => 0,
        }
    }
}

impl LayerBuffers<'_> {
    fn dense_ffn(&self, loader: &mut GpuLoader<'_, '_>, weights: &FfnWeights, from: Register) -> Result<DenseFfn> {
        let shape = FfnShape::of(weights);
        let other = self.others.iter().filter_map(GpuLayer::dense).find(|dense| dense.buffers.fits(shape));
        let buffers = match other {
            Some(other) => other.buffers.clone(),
            None => FfnBuffers::new(loader, loader.chunk, shape)?,
        };
        let (from, out) = (self.registers.get(from), self.registers.rows(Register::Out));
        DenseFfn::new(loader, other, &buffers, weights, from, out)
    }
}

/// The error of a cache whose part for `layer` is on another processor.
fn not_here(what: &'static str, layer: usize) -> Error {
    Error::invalid(what, format!("a part on the device for layer {layer}"), "no such part")
}
