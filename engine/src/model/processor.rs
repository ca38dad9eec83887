//! Who computes a forward pass.

use std::{fmt::Debug, ops::Range};

use super::{KvCache, Model, NormSlot, Probe, Register};
use crate::error::Result;

/// The coarse operations a model's program is made of. A processor owns the registers (`[tokens, d_model]` each) and its
/// scratch memory, which grows to the largest chunk seen and stays. `model` is the same in every call between two
/// [`Processor::begin`].
pub trait Processor: Debug + Send {
    /// Starts a chunk of tokens at the cache's end: `Residual = embedding(tokens) * scale (+ learned positions)`. Token ids
    /// and positions are in range.
    fn begin(&mut self, model: &Model, tokens: &[u32], kv: &KvCache) -> Result<()>;

    /// `into = norm(from)`
    fn norm(&mut self, model: &Model, layer: usize, norm: NormSlot, from: Register, into: Register) -> Result<()>;

    /// `Out = attention(from)`; the chunk's keys and values are appended to the layer's cache.
    fn attention(&mut self, model: &Model, layer: usize, from: Register, kv: &mut KvCache) -> Result<()>;

    /// `Out = ffn(from)`
    fn ffn(&mut self, model: &Model, layer: usize, from: Register, probe: &mut dyn Probe) -> Result<()>;

    /// `Residual += Out`
    fn add_out(&mut self) -> Result<()>;

    /// The residual stream, `[tokens, d_model]`.
    fn residual(&mut self) -> Result<&[f32]>;

    /// Final norm and head of the chunk's tokens in `tokens`, into `logits` `[tokens.len(), n_vocab]`. Comes last in a
    /// chunk: the residual is not needed any more.
    fn head(&mut self, model: &Model, tokens: Range<usize>, logits: &mut [f32]) -> Result<()>;

    /// Bytes of registers and scratch memory held.
    fn scratch_bytes(&self) -> u64;
}
