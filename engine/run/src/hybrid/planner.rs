//! The interface of a planner, which decides what is resident.

use std::fmt::Debug;

use crate::placement::{Placement, Streaming};
use thermocline_base::error::Result;
use thermocline_model::Model;

/// Decides what is resident under a budget. Called between chunks.
pub trait Planner: Debug + Send {
    /// The best placement in `budget` bytes. Called when the budget changes.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if the least that can be resident is larger than that.
    fn plan(&mut self, model: &Model, budget: u64) -> Result<Placement>;

    /// Called at every [`settle`](crate::runtime::Residency::settle): another placement under the same budget, if recent
    /// firing makes it better.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    fn revise(&mut self, model: &Model, now: &Placement) -> Result<Option<Placement>> {
        let _ = (model, now);
        Ok(None)
    }

    /// When cold neurons of prompts are streamed to the device, and bytes of the `budget` for the streaming buffer. Called when the
    /// wanted placement is reached; `None`: as before.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    fn streaming(&mut self, model: &Model, budget: u64) -> Result<Option<(Streaming, u64)>> {
        let _ = (model, budget);
        Ok(None)
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
    /// Units among them: neurons, or experts.
    pub units: usize,
    /// True if anything is left to do.
    pub more: bool,
}
