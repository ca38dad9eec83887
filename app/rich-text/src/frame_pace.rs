//! Frame pace: the shortest time between frames, which depends on the device that draws.

use std::time::Duration;

use egui::{Context, Id};

/// Shortest time between two frames requested by the engine.
pub const FRAME: Duration = Duration::from_millis(33);

/// Shortest time between such frames if the CPU both draws and computes the model.
const SLOW: Duration = Duration::from_millis(500);

/// Shortest time between two frames requested by the engine in this window. User input is drawn at
/// once.
pub fn pace(ctx: &Context) -> Duration {
    if draws_by_cpu(ctx) { SLOW } else { FRAME }
}

/// True if the window is drawn in software.
pub fn draws_by_cpu(ctx: &Context) -> bool {
    ctx.data(|data| data.get_temp(Id::unique("drawn by the CPU"))).unwrap_or(false)
}

/// True if panels open and close without animation: because of `reduced_motion`, or because drawing
/// the animation would take CPU time from the model.
pub fn still(ctx: &Context, reduced_motion: bool) -> bool {
    reduced_motion || draws_by_cpu(ctx)
}

/// Records whether the window is drawn in software.
pub fn set_draws_by_cpu(ctx: &Context, so: bool) {
    ctx.data_mut(|data| data.insert_temp(Id::unique("drawn by the CPU"), so));
}
