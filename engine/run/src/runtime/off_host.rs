//! Keys, values and recurrent states in the memory of a processor other than the CPU. A
//! conversation's cache counts, copies, saves and restores them. Only the owner depends on their
//! place and computation, and it gets its own type back from the cache.

use std::{any::Any, fmt::Debug, ops::Range};

use super::RecurrentState;
use thermocline_base::error::{Error, Result};
use thermocline_gpu::Recorder;

/// Keys and values of one layer in another processor's memory.
pub(crate) trait OffHostRows: Any + Debug + Send + Sync {
    /// Bytes in the other memory; 0 if the rows belong to another layer.
    fn bytes(&self) -> u64;

    /// Records copies of `rows` of every head of `from`, which may have another capacity.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `from` is of another type.
    fn copy_rows(&self, from: &dyn OffHostRows, rows: Range<usize>, recorder: &mut Recorder) -> Result<()>;
}

/// The recurrent state of one layer in another processor's memory.
pub(crate) trait OffHostState: Any + Debug + Send + Sync {
    /// Reads the state back into `to`, after everything submitted before.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    fn save(&self, to: &mut RecurrentState) -> Result<()>;

    /// Sets the state to `from`, after everything submitted before.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    fn restore(&self, from: &RecurrentState) -> Result<()>;

    /// Number of planes that have memory: copies of the state after each token of a pass of
    /// separate tokens, except the last, or before each of several passes.
    fn planes(&self) -> usize;

    /// Makes memory for `planes` planes in the other memory.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room. Some planes may have been made.
    fn reserve_planes(&mut self, planes: usize) -> Result<()>;

    /// Frees all but the first `planes` planes.
    fn truncate_planes(&mut self, planes: usize);

    /// Makes a recorder for the other processor.
    fn recorder(&self) -> Recorder;

    /// Records a copy of the state into plane `at`.
    fn save_plane(&self, at: usize, recorder: &mut Recorder);

    /// Records that the state becomes the one in plane `at`.
    fn choose_plane(&self, at: usize, recorder: &mut Recorder);
}

impl dyn OffHostRows {
    /// The rows as their owner's type.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they have another type.
    pub(crate) fn of<T: OffHostRows>(&self) -> Result<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
            .ok_or_else(|| Error::invalid("KV cache", "a KV cache of this device", "a KV cache of another processor"))
    }
}

impl dyn OffHostState {
    /// The state as its owner's type.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has another type.
    pub(crate) fn of<T: OffHostState>(&self) -> Result<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
            .ok_or_else(|| Error::invalid("recurrent state", "a state of this device", "a state of another processor"))
    }
}
