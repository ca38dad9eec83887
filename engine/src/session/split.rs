//! What becomes of a split that is to be followed.

use serde::Serialize;

use crate::{model::Resident, sparsity::placement::Split};

/// How far a split of PowerInfer's is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SplitReport {
    /// Neurons it puts on the GPU.
    pub neurons: usize,
    /// How many of them are there: all, unless the budget has no room for them or they are on their way.
    pub resident: usize,
}

impl SplitReport {
    /// Of a model of which this is resident.
    pub fn new(split: &Split, resident: &Resident) -> Self {
        SplitReport { neurons: split.neurons(), resident: split.resident(resident) }
    }
}
