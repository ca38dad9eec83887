//! The memory that the largest picture of a vision tower takes.

use std::fmt;

use thermocline_engine::{
    device::{caps_of, tower_bytes},
    model::Tower,
    placement::Machine,
    runtime::tower_scratch,
};
use thermocline_host::units;

/// Bytes for the largest picture that a tower takes.
#[derive(Debug, Clone, Copy)]
pub struct PictureBytes {
    /// RAM beside the tower's weights.
    pub ram: u64,
    /// Memory of a typical GPU, with weights. `None` for a tower that only the CPU computes.
    pub gpu: Option<u64>,
}

impl PictureBytes {
    /// The bytes of `tower`.
    pub fn of(tower: &Tower) -> Self {
        let caps = caps_of(Machine::typical_limits());
        PictureBytes { ram: tower_scratch(tower), gpu: tower_bytes(&caps, tower, tower.most_patches()).ok() }
    }
}

impl fmt::Display for PictureBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of RAM for the largest picture", units::bytes(self.ram))?;
        match self.gpu {
            Some(gpu) => write!(f, ", {} of GPU memory if a GPU computes it", units::bytes(gpu)),
            None => write!(f, "; the CPU computes it"),
        }
    }
}
