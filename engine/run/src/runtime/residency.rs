//! Residency: the part of a model that a processor holds in a device's memory, and its changes.

use super::KvCache;
use thermocline_base::error::Result;
use thermocline_model::{Model, Resident};

/// A processor that holds a part of a model in a device's memory. It can change that part between
/// chunks while it computes. `model` must be the model of the processor, and `caches` must be all
/// caches, because keys and values move with their layers.
pub trait Residency {
    /// Moves keys and values of `kv` to the memory in which this processor uses them. Keys and
    /// values of its device's layers move from RAM. All others move to RAM.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if there is no room,
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost. Each layer's keys
    /// and values are then still complete, on the device or in RAM.
    /// [`Error::Invalid`](thermocline_base::error::Error::Invalid) for a cache of another model's
    /// shape.
    fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()>;

    /// Moves keys and values of `kv` from this processor's device to RAM, from where every
    /// processor can take them.
    ///
    /// # Errors
    /// As [`Residency::take_kv`].
    fn return_kv(&mut self, kv: &mut KvCache) -> Result<()>;

    /// Copies the keys and values of `layers` to RAM, where an assistant on the CPU reads them.
    /// They stay on the device as well.
    ///
    /// # Errors
    /// As [`Residency::take_kv`].
    fn copy_to_ram(&mut self, layers: &[usize], kv: &mut KvCache) -> Result<()>;

    /// Copies until `to` holds `tokens` of the tokens that `from` holds. Returns the number of
    /// tokens that `to` then holds (see [`Forward::copy_prefix`](super::Forward::copy_prefix)).
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost,
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) without room.
    fn copy_prefix(&mut self, from: &KvCache, to: &mut KvCache, tokens: usize) -> Result<usize> {
        to.copy_prefix(from, tokens, None)
    }

    /// Limits the device memory to `bytes`. Everything above the limit is freed before this
    /// returns.
    ///
    /// # Errors
    /// [`Error::Unsupported`](thermocline_base::error::Error::Unsupported) without a planner,
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if the smallest part that can be
    /// held exceeds the limit.
    fn set_budget(&mut self, model: &Model, bytes: u64, caches: &mut [&mut KvCache]) -> Result<()>;

    /// Moves a limited number of bytes towards the wanted placement. Returns true if there is more
    /// to move.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    fn settle(&mut self, model: &Model, caches: &mut [&mut KvCache]) -> Result<bool>;

    /// The part of `model` that is on the device now; `None` without a device.
    fn resident(&self, model: &Model) -> Option<Resident>;

    /// Number of changes of the part on the device. While it stays the same,
    /// [`Residency::resident`] stays the same.
    fn moves(&self) -> u64;
}
