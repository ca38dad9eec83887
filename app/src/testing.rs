//! Waiting, for unit tests.

use std::{
    thread,
    time::{Duration, Instant},
};

/// The longest time a test waits for anything. It only ends a wait for what never comes: a busy machine may be slow.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until there is something, which must come within [`PATIENCE`].
#[track_caller]
pub fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until something is so, which must come within [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    until(what, || is().then_some(()));
}
