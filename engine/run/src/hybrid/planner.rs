//! The interface of a planner, which decides which parts of a model are resident.

use std::{fmt::Debug, time::Duration};

use crate::placement::{Placement, Streaming};
use thermocline_base::error::Result;
use thermocline_model::Model;

/// Decides which parts are resident under a budget. Called between chunks.
pub trait Planner: Debug + Send {
    /// Returns the best placement in `budget` bytes. Called when the budget changes.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if the smallest useful resident
    /// part exceeds the budget.
    fn plan(&mut self, model: &Model, budget: u64) -> Result<Placement>;

    /// Returns another placement for the same budget if recent firing makes it better. Called at
    /// every [`settle`](crate::runtime::Residency::settle).
    ///
    /// # Errors
    /// As [`Planner::plan`].
    fn revise(&mut self, model: &Model, now: &Placement) -> Result<Option<Placement>> {
        let _ = (model, now);
        Ok(None)
    }

    /// Decides when cold neurons and experts of prompts are streamed to the device, and how many
    /// bytes of the `budget` the streaming buffer gets. Called when the wanted placement is
    /// reached. `None` changes nothing.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    fn streaming(&mut self, model: &Model, budget: u64) -> Result<Option<(Streaming, u64)>> {
        let _ = (model, budget);
        Ok(None)
    }

    /// Counts an upload of `bytes` that took `time`.
    fn uploaded(&mut self, bytes: u64, time: Duration) {
        let _ = (bytes, time);
    }

    /// Most bytes to upload in one call of `settle`.
    fn bytes_per_move(&self) -> u64 {
        16 << 20
    }
}

/// The work of one step towards a placement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes of weights uploaded.
    pub bytes: u64,
    /// Number of units uploaded: neurons, or experts.
    pub units: usize,
    /// True if anything is left to upload.
    pub more: bool,
}
