//! Counters and snapshots that any thread may read at any time. The engine thread writes; neither side waits:
//! every figure is an atomic of its own. A [`Snapshot`] is therefore not one instant, but each figure in it is true
//! within the step that was running. Which neurons fire, token by token, is on the board of [`neurons`]. Nothing here
//! imports another module of the engine.

mod counters;
mod meter;
pub mod neurons;
mod rate;

pub use counters::{Gauge, Ratio, Snapshot, Telemetry, TelemetryFigures};
pub use meter::Meter;
pub use rate::Rate;
