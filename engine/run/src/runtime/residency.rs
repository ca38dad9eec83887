//! Residency: the part of a model that a processor holds in a device's memory, and how it changes.

use super::KvCache;
use thermocline_base::error::Result;
use thermocline_model::{Model, Resident};

/// A processor that holds a part of a model in a device's memory, and can change that part between chunks while it computes. `model` is
/// the one it was made for, and `caches` are all that exist: their keys and values move with their layers.
pub trait Residency {
    /// Brings keys and values of `kv` to where this processor works on them: those of its device's layers from RAM, the others to RAM.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if there is no room, [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost: of
    /// each layer, keys and values are then still whole, on the device or in RAM. [`Error::Invalid`](thermocline_base::error::Error::Invalid) for a
    /// cache of another model's shape.
    fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()>;

    /// Moves keys and values of `kv` from this processor's device to RAM, where every processor can take them.
    ///
    /// # Errors
    /// As [`Residency::take_kv`].
    fn return_kv(&mut self, kv: &mut KvCache) -> Result<()>;

    /// Brings `to` to `tokens` of the tokens that `from` holds, by copies; returns the number it holds then (see
    /// [`Forward::copy_prefix`](super::Forward::copy_prefix)).
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost, [`Error::Memory`](thermocline_base::error::Error::Memory) without room.
    fn copy_prefix(&mut self, from: &KvCache, to: &mut KvCache, tokens: usize) -> Result<usize> {
        to.copy_prefix(from, tokens, None)
    }

    /// Holds at most `bytes` of device memory from now on: what exceeds them is freed before this returns.
    ///
    /// # Errors
    /// [`Error::Unsupported`](thermocline_base::error::Error::Unsupported) without a planner to ask, [`Error::Memory`](thermocline_base::error::Error::Memory) if the least
    /// that can be held is larger.
    fn set_budget(&mut self, model: &Model, bytes: u64, caches: &mut [&mut KvCache]) -> Result<()>;

    /// Moves a bounded number of bytes towards the placement that is wanted; true if there is more to move.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    fn settle(&mut self, model: &Model, caches: &mut [&mut KvCache]) -> Result<bool>;

    /// The part of `model` that is on the device now; `None` without a device.
    fn resident(&self, model: &Model) -> Option<Resident>;

    /// Number of changes so far of what is on the device: while it stays the same, so does [`Residency::resident`].
    fn moves(&self) -> u64;
}
