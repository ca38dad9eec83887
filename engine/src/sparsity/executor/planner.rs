//! Who decides what is resident.

use std::fmt::Debug;

use crate::{
    error::Result,
    model::Model,
    sparsity::placement::{Placement, Streaming},
};

/// Decides what is resident under a budget; asked between chunks.
pub trait Planner: Debug + Send {
    /// What should be resident in `budget` bytes. Called when the budget changes.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if what cannot be given up is larger than that.
    fn plan(&mut self, model: &Model, budget: u64) -> Result<Placement>;

    /// Called at every [`settle`](crate::model::Processor::settle): another placement under the same budget, where what fired
    /// lately speaks for one.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    fn revise(&mut self, model: &Model, now: &Placement) -> Result<Option<Placement>> {
        let _ = (model, now);
        Ok(None)
    }

    /// Where the cold neurons' part of a prompt is computed, and how many of the `budget` bytes may carry their rows to the device.
    /// Asked when all that was wanted has come up; `None`: as before.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    fn streaming(&mut self, model: &Model, budget: u64) -> Result<Option<(Streaming, u64)>> {
        let _ = (model, budget);
        Ok(None)
    }

    /// Most bytes to bring up in one call of `settle`.
    fn bytes_per_move(&self) -> u64 {
        16 << 20
    }
}

/// What a step towards a placement did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes of weights that went up.
    pub bytes: u64,
    /// Neurons among them.
    pub neurons: usize,
    /// Whether anything is left to do.
    pub more: bool,
}
