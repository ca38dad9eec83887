//! Who computes a forward pass.

use std::{fmt::Debug, ops::Range};

use super::{KvCache, KvType, Model, NormSlot, Probe, Register, Resident, Sparsity, Steering};
use crate::error::Result;

/// The coarse operations a model's program is made of. A processor owns the registers (`[tokens, d_model]` each) and its
/// scratch memory, which grows to the largest chunk seen and stays. `model` is the same in every call between two
/// [`Processor::begin`].
///
/// A chunk is `begin`, the layers' steps, and then exactly one of `head`, `top` and `finish`; or it is given up after any of
/// them, and the next `begin` starts afresh.
pub trait Processor: Debug + Send {
    /// Most tokens of a chunk.
    fn max_chunk(&self) -> usize {
        usize::MAX
    }

    /// A cache where this processor can work on it. `ty` is a wish: [`KvCache::ty`] says what became of it.
    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache>;

    /// Whether `kv` is where this processor can work on it.
    fn holds(&self, kv: &KvCache) -> bool;

    /// Starts a chunk of tokens at the cache's end: `Residual = embedding(tokens) * scale (+ learned positions)`. Token ids
    /// and positions are in range, and `kv` is one that it holds.
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

    /// Final norm and head of the chunk's tokens in `tokens`, into `logits` `[tokens.len(), n_vocab]`. Ends the chunk: the
    /// residual is not needed any more.
    fn head(&mut self, model: &Model, tokens: Range<usize>, logits: &mut [f32]) -> Result<()>;

    /// The same of one token, but only the largest logits and their ids, in descending order (the smaller id first among
    /// equals): as many as there is room for, at most [`MAX_SHORTLIST`](super::MAX_SHORTLIST).
    fn top(&mut self, model: &Model, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()>;

    /// Ends a chunk of which no logits are wanted.
    fn finish(&mut self) -> Result<()>;

    /// Tells `probe` what fired in the chunk that has just ended, where that was not known while its layers were computed.
    fn report(&mut self, model: &Model, probe: &mut dyn Probe) {
        let _ = (model, probe);
    }

    /// What is skipped when single tokens are computed, from the next chunk on.
    fn set_sparsity(&mut self, mode: Sparsity);

    /// Which layer is audited and how thresholds are shifted, from the next chunk on.
    fn steer(&mut self, steering: &Steering) {
        let _ = steering;
    }

    /// Whether somebody wants to know how long a device is at each layer ([`Probe::wants_times`]), from the next chunk on.
    fn time(&mut self, on: bool) {
        let _ = on;
    }

    /// Brings what `kv` holds to where this processor works on it: the keys and values of its layers move from RAM, and
    /// nothing is computed. Afterwards [`Processor::holds`] says whether that was possible.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if there is no room, [`Error::Gpu`](crate::Error::Gpu) if the device is lost: of
    /// each layer, keys and values are then still whole, here or in RAM.
    fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()> {
        let _ = (model, kv);
        Ok(())
    }

    /// The way back: what of `kv` is on this processor's device moves into RAM, where every processor finds it.
    ///
    /// # Errors
    /// As [`Processor::take_kv`].
    fn return_kv(&mut self, kv: &mut KvCache) -> Result<()> {
        let _ = kv;
        Ok(())
    }

    /// Most bytes of device memory to hold from now on, where a processor can change that; what is over is released before
    /// this returns. `caches` are all that exist: their keys and values move with the layers. Not to be called within a chunk.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a processor without such a boundary, [`Error::Memory`](crate::Error::Memory)
    /// if what cannot be given up is larger than that.
    fn set_budget(&mut self, model: &Model, bytes: u64, caches: &mut [&mut KvCache]) -> Result<()> {
        let _ = (model, bytes, caches);
        Err(crate::Error::Unsupported {
            what: "VRAM budget",
            got: "a change while the model is loaded".to_owned(),
            supported: "one at loading".to_owned(),
        })
    }

    /// Called between chunks: moves a bounded number of bytes towards where they should be. Whether there is more to move.
    /// `caches` are all that exist.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if the device is lost.
    fn settle(&mut self, model: &Model, caches: &mut [&mut KvCache]) -> Result<bool> {
        let _ = (model, caches);
        Ok(false)
    }

    /// What of `model` is on a device now; `None`: there is none.
    fn resident(&self, model: &Model) -> Option<Resident> {
        let _ = model;
        None
    }

    /// Counts how often what is on a device has changed: only then [`Processor::resident`] has to be asked again.
    fn moves(&self) -> u64 {
        0
    }

    /// Bytes of registers and scratch memory held.
    fn scratch_bytes(&self) -> u64;
}
