//! Counters and snapshots that any thread may read at any time. The engine thread writes. Neither
//! side waits, because every figure is an atomic. The figures of a [`Snapshot`] are therefore not
//! read at one instant, but each is true within the current step. The board of [`neurons`] shows
//! which neurons fire, token by token. This module imports no other module of the engine.

mod counters;
mod decayed_counts;
mod meter;
pub mod neurons;
mod rate;

pub use counters::{Gauge, Ratio, Snapshot, Telemetry, TelemetryFigures};
pub use decayed_counts::DecayedCounts;
pub use meter::Meter;
pub use rate::Rate;
