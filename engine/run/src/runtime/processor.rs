//! The interface of a processor, as a forward pass uses it.

use std::{fmt::Debug, ops::Range};

use super::{HeldExperts, KvCache, KvType, Pass, Residency, Sequences};
use thermocline_base::error::Result;
use thermocline_cpu::Isa;
use thermocline_model::{BoundStep, Model, Sparsity};

/// Computes the coarse operations of a model's program. A processor owns the registers,
/// `[tokens, d_model]` each, and its scratch memory, which grows to the size of the largest chunk.
/// The pass is the same in all calls between two [`Processor::begin`].
///
/// A chunk is `begin`, the layers' steps, perhaps `hidden`, and then exactly one of `head`, `top`
/// and `finish`. A chunk may also be given up after any of these calls; the next `begin` then
/// starts a new one.
pub trait Processor: Debug + Send {
    /// The instruction set of everything computed on the CPU.
    fn isa(&self) -> Isa;

    /// Most tokens of a chunk.
    fn max_chunk(&self) -> usize {
        usize::MAX
    }

    /// Tokens of a prompt's chunk that share one upload of streamed weights, even if shorter chunks
    /// were asked for; 0 if nothing is streamed.
    fn streamed_chunk(&self) -> usize {
        0
    }

    /// Best number of prompt tokens to compute together now. It is less than
    /// [`Processor::max_chunk`] if a device would take too long.
    fn paced_chunk(&self) -> usize {
        usize::MAX
    }

    /// Makes a cache that this processor can use. `ty` is a preference: [`KvCache::ty`] is the
    /// actual encoding.
    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache>;

    /// True if this processor can use `kv` as it is.
    fn holds(&self, kv: &KvCache) -> bool;

    /// Starts a chunk of tokens at the caches' ends:
    /// `Residual = embedding(tokens) * scale (+ learned positions)`. The caller ensures that token
    /// ids and positions are in range, that there is one row per token, and that the processor
    /// holds the caches.
    fn begin(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) -> Result<()>;

    /// Computes a step of a layer. The caller passes the steps in the order of the layers'
    /// programs.
    fn step(&mut self, pass: &mut Pass<'_>, step: &BoundStep<'_>, sequences: &mut Sequences<'_>) -> Result<()>;

    /// Adds the values of [`InputRows::added`](super::InputRows::added) after `layer` to the
    /// residual stream.
    fn add_inputs(&mut self, pass: &Pass<'_>, layer: usize) -> Result<()>;

    /// The residual stream, `[tokens, d_model]`.
    fn residual(&mut self, pass: &Pass<'_>) -> Result<&[f32]>;

    /// Computes final norm and head of the chunk's `tokens` into `logits`,
    /// `[tokens.len(), n_vocab]`. Ends the chunk: the residual stream is not needed any more.
    fn head(&mut self, pass: &Pass<'_>, tokens: Range<usize>, logits: &mut [f32]) -> Result<()>;

    /// Computes the head's inputs (the hidden states after the final norm) of all tokens of the
    /// chunk into `out`, `[tokens, d_model]`. Does not end the chunk.
    fn hidden(&mut self, pass: &Pass<'_>, out: &mut [f32]) -> Result<()>;

    /// Computes the head of one token, but returns only the largest logits and their ids, in
    /// descending order (the smaller id first among equals). Fills `ids` and `logits`, which have
    /// at most [`MAX_SHORTLIST`](super::MAX_SHORTLIST) elements.
    fn top(&mut self, pass: &Pass<'_>, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()>;

    /// Ends a chunk without computing logits.
    fn finish(&mut self) -> Result<()>;

    /// Passes the firing of the finished chunk to its observer, if it was not known while the
    /// layers were computed.
    fn report(&mut self, pass: &mut Pass<'_>) {
        let _ = pass;
    }

    /// Most separate tokens in a pass in `mode` whose logits equal, bit by bit, those of
    /// single-token passes. 1 promises nothing.
    fn same_bits(&self, model: &Model, mode: Sparsity) -> usize {
        let _ = (model, mode);
        1
    }

    /// False if a trial on the processor's device found that tokens of a pass lose the bits of
    /// [`Processor::same_bits`].
    fn keeps_bits(&self) -> bool {
        true
    }

    /// Announces the sparsity mode of the next passes, so that a processor can prepare for it
    /// between two passes.
    fn expect_sparsity(&mut self, mode: Sparsity) {
        let _ = mode;
    }

    /// Sets the experts that routers prefer on a processor without a device.
    fn hold_experts(&mut self, held: HeldExperts) {
        let _ = held;
    }

    /// The residency of the model on a device, if the processor has one.
    fn residency(&mut self) -> Option<&mut dyn Residency> {
        None
    }

    /// Bytes of registers and scratch memory held.
    fn scratch_bytes(&self) -> u64;
}
