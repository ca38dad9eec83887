//! The interface of a processor: what a forward pass asks of it.

use std::{fmt::Debug, ops::Range};

use super::{KvCache, KvType, Pass, Residency, Sequences};
use thermocline_base::error::Result;
use thermocline_cpu::Isa;
use thermocline_model::{BoundStep, Model, Sparsity};

/// Computes the coarse operations of a model's program. A processor owns the registers, `[tokens, d_model]` each, and its scratch
/// memory, which grows to the largest chunk seen and stays. The pass is the same in every call between two [`Processor::begin`].
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

    /// Tokens of a prompt that are best computed together now: fewer than [`Processor::max_chunk`] where a device would take
    /// too long.
    fn paced_chunk(&self) -> usize {
        usize::MAX
    }

    /// A cache that this processor can work on. `ty` is a preference: [`KvCache::ty`] is the encoding it has.
    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache>;

    /// True if this processor can work on `kv` as it is.
    fn holds(&self, kv: &KvCache) -> bool;

    /// Starts a chunk of tokens at the caches' ends: `Residual = embedding(tokens) * scale (+ learned positions)`. Token ids
    /// and positions are in range, there are as many tokens as rows, and it holds the caches.
    fn begin(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) -> Result<()>;

    /// Computes a step of a layer. Steps come in the order of the layers' programs.
    fn step(&mut self, pass: &mut Pass<'_>, step: &BoundStep<'_>, sequences: &mut Sequences<'_>) -> Result<()>;

    /// The residual stream, `[tokens, d_model]`.
    fn residual(&mut self, pass: &Pass<'_>) -> Result<&[f32]>;

    /// Final norm and head of the chunk's tokens in `tokens`, into `logits` `[tokens.len(), n_vocab]`. Ends the chunk: the
    /// residual is not needed any more.
    fn head(&mut self, pass: &Pass<'_>, tokens: Range<usize>, logits: &mut [f32]) -> Result<()>;

    /// The hidden states that the head reads, those behind the final norm, of all of the chunk's tokens: into `out`, `[tokens, d_model]`.
    /// Ends the chunk.
    fn hidden(&mut self, pass: &Pass<'_>, out: &mut [f32]) -> Result<()>;

    /// The head of one token, but only the largest logits and their ids, in descending order (the smaller id first among
    /// equals): as many as there is room for, at most [`MAX_SHORTLIST`](super::MAX_SHORTLIST).
    fn top(&mut self, pass: &Pass<'_>, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()>;

    /// Ends a chunk of which no logits are wanted.
    fn finish(&mut self) -> Result<()>;

    /// Passes the firing of the chunk that has just ended to its observer, where it was not known while the layers were computed.
    fn report(&mut self, pass: &mut Pass<'_>) {
        let _ = pass;
    }

    /// Most tokens that a pass of separate tokens may have in `mode` so that their logits have the bits of passes of one token
    /// each. 1 promises nothing.
    fn same_bits(&self, model: &Model, mode: Sparsity) -> usize {
        let _ = (model, mode);
        1
    }

    /// Tells the sparsity mode of the passes to come ahead of them, for what a processor has to make ready between two.
    fn expect_sparsity(&mut self, mode: Sparsity) {
        let _ = mode;
    }

    /// The residency of the model on a device, if the processor has one.
    fn residency(&mut self) -> Option<&mut dyn Residency> {
        None
    }

    /// Bytes of registers and scratch memory held.
    fn scratch_bytes(&self) -> u64;
}
