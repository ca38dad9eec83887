//! The vision tower in GPU memory.

use serde_json::{Value, json};
use thermocline_engine::{
    device::{caps_of, tower_bytes},
    model::Tower,
    placement::Limits,
};
use thermocline_host::units;

/// A vision tower on a GPU while it computes a picture.
#[derive(Debug, Clone, Copy)]
pub struct PlannedTower {
    /// Bytes for the largest picture that the tower takes.
    pub bytes: u64,
    /// Bytes of GPU memory beside the model.
    pub room: u64,
}

impl PlannedTower {
    /// The tower on a GPU with these limits and `room` bytes beside the model. `None` for a tower
    /// that only the CPU computes.
    pub fn of(tower: &Tower, limits: Limits, room: u64) -> Option<Self> {
        let bytes = tower_bytes(&caps_of(limits), tower, tower.most_patches()).ok()?;
        Some(PlannedTower { bytes, room })
    }

    fn fits(&self) -> bool {
        self.bytes <= self.room
    }

    /// A line of the report.
    pub fn text(&self) -> String {
        let [bytes, room] = [self.bytes, self.room].map(units::bytes);
        match self.fits() {
            true => format!("tower     {bytes} of GPU memory while it computes the largest picture, of {room} free\n"),
            false => format!(
                "tower     the CPU computes large pictures: they need {bytes} of GPU memory, and {room} are free\n"
            ),
        }
    }

    /// The tower as JSON.
    pub fn json(&self) -> Value {
        json!({ "bytes": self.bytes, "room": self.room, "fits": self.fits() })
    }
}
