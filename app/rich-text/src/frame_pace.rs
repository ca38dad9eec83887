//! The pace of frames: how soon one may follow another, which depends on what draws them.

use std::time::Duration;

use egui::{Context, Id};

/// Shortest time between two frames that news of the engine ask for.
pub const FRAME: Duration = Duration::from_millis(33);

/// The same where frames are drawn by the processor that computes the model, too.
const SLOW: Duration = Duration::from_millis(500);

/// Shortest time between two frames that news of the engine ask for, as this window is drawn. What the user does is seen at once.
pub fn pace(ctx: &Context) -> Duration {
    if draws_by_cpu(ctx) { SLOW } else { FRAME }
}

/// True if the window is drawn in software.
pub fn draws_by_cpu(ctx: &Context) -> bool {
    ctx.data(|data| data.get_temp(Id::unique("drawn by the CPU"))).unwrap_or(false)
}

/// True if panels open and close without animation: because the user asked for `reduced_motion`, or because drawing the pictures in
/// between would take the CPU from the model.
pub fn still(ctx: &Context, reduced_motion: bool) -> bool {
    reduced_motion || draws_by_cpu(ctx)
}

/// Notes whether the window is drawn in software.
pub fn set_draws_by_cpu(ctx: &Context, so: bool) {
    ctx.data_mut(|data| data.insert_temp(Id::unique("drawn by the CPU"), so));
}
