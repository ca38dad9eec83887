//! The interface of a processor: the operations that a forward pass is made of.

use std::{fmt::Debug, ops::Range};

use super::{KvCache, KvType, Probe, Residency, Sequences, Sparsity, ThresholdCorrection};
use crate::{
    cpu::Isa,
    error::Result,
    model::{AltupStep, Model, NormSlot, Register},
};

/// Computes the coarse operations of a model's program. A processor owns the registers, `[tokens, d_model]` each, and its scratch
/// memory, which grows to the largest chunk seen and stays. `model` is the same in every call between two [`Processor::begin`].
///
/// A chunk is `begin`, the layers' steps, and then exactly one of `head`, `top` and `finish`; or it is given up after any of
/// them, and the next `begin` starts afresh.
pub trait Processor: Debug + Send {
    /// The instruction set of what is computed on the CPU.
    fn isa(&self) -> Isa;

    /// Most tokens of a chunk.
    fn max_chunk(&self) -> usize {
        usize::MAX
    }

    /// A cache that this processor can work on. `ty` is a preference: [`KvCache::ty`] is the encoding it has.
    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache>;

    /// True if this processor can work on `kv` as it is.
    fn holds(&self, kv: &KvCache) -> bool;

    /// Starts a chunk of tokens at the caches' ends: `Residual = embedding(tokens) * scale (+ learned positions)`. Token ids
    /// and positions are in range, there are as many tokens as rows, and it holds the caches.
    fn begin(&mut self, model: &Model, tokens: &[u32], sequences: &Sequences<'_>) -> Result<()>;

    /// `into = norm(from)`
    fn norm(&mut self, model: &Model, layer: usize, norm: NormSlot, from: Register, into: Register) -> Result<()>;

    /// `Out = attention(from)`; the chunk's keys and values are appended to the layer's cache of each sequence.
    fn attention(&mut self, model: &Model, layer: usize, from: Register, sequences: &mut Sequences<'_>) -> Result<()>;

    /// `Out = recurrent mixer(from)`; the layer's recurrent state of each sequence is advanced by its rows.
    fn recurrent(&mut self, model: &Model, layer: usize, from: Register, sequences: &mut Sequences<'_>) -> Result<()>;

    /// Chooses the experts of the layer's FFN by `from`.
    fn route(&mut self, model: &Model, layer: usize, from: Register) -> Result<()>;

    /// `Out = ffn(from)`
    fn ffn(&mut self, model: &Model, layer: usize, from: Register, probe: &mut dyn Probe) -> Result<()>;

    /// `Out = dense FFN(from)`, of the one beside the layer's experts.
    fn dense_ffn(&mut self, model: &Model, layer: usize, from: Register) -> Result<()>;

    /// `into += from`, two registers.
    fn add(&mut self, layer: usize, from: Register, into: Register) -> Result<()>;

    /// `Residual += Out`
    fn add_out(&mut self) -> Result<()>;

    /// `Out =` what the layer makes of its own input and `Residual`.
    fn per_layer_input(&mut self, model: &Model, layer: usize) -> Result<()>;

    /// A step between the streams of a model that has several.
    fn altup(&mut self, model: &Model, layer: usize, step: AltupStep) -> Result<()>;

    /// `Residual *=` the layer's factor
    fn scale(&mut self, model: &Model, layer: usize) -> Result<()>;

    /// The residual stream, `[tokens, d_model]`.
    fn residual(&mut self) -> Result<&[f32]>;

    /// Final norm and head of the chunk's tokens in `tokens`, into `logits` `[tokens.len(), n_vocab]`. Ends the chunk: the
    /// residual is not needed any more.
    fn head(&mut self, model: &Model, tokens: Range<usize>, logits: &mut [f32]) -> Result<()>;

    /// The hidden states that the head reads, those behind the final norm, of all of the chunk's tokens: into `out`, `[tokens, d_model]`.
    /// Ends the chunk.
    fn hidden(&mut self, model: &Model, out: &mut [f32]) -> Result<()>;

    /// The head of one token, but only the largest logits and their ids, in descending order (the smaller id first among
    /// equals): as many as there is room for, at most [`MAX_SHORTLIST`](super::MAX_SHORTLIST).
    fn top(&mut self, model: &Model, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()>;

    /// Ends a chunk of which no logits are wanted.
    fn finish(&mut self) -> Result<()>;

    /// Passes the firing of the chunk that has just ended to `probe`, where it was not known while the layers were computed.
    fn report(&mut self, probe: &mut dyn Probe) {
        let _ = probe;
    }

    /// Sets the sparsity mode of single tokens, from the next chunk on.
    fn set_sparsity(&mut self, mode: Sparsity);

    /// Sets the threshold correction of predictors, from the next chunk on.
    fn correct_thresholds(&mut self, correction: &ThresholdCorrection) {
        let _ = correction;
    }

    /// Times layers on a device, or does not ([`Probe::wants_times`]), from the next chunk on.
    fn time(&mut self, on: bool) {
        let _ = on;
    }

    /// The residency of the model on a device, if the processor has one.
    fn residency(&mut self) -> Option<&mut dyn Residency> {
        None
    }

    /// Bytes of registers and scratch memory held.
    fn scratch_bytes(&self) -> u64;
}
