//! Waiting for what happens beside a test.

use std::time::{Duration, Instant};

/// The longest time a test waits for anything. It only ends a wait for what never comes: a busy machine may be slow.
pub const LONGEST: Duration = Duration::from_secs(120);

/// Waits until something is so.
///
/// # Panics
/// If it is not within [`LONGEST`].
#[track_caller]
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    until(what, || is().then_some(()));
}

/// Waits until there is something, and returns it.
///
/// # Panics
/// If there is nothing within [`LONGEST`].
#[track_caller]
pub fn until<T>(what: &str, find: impl FnMut() -> Option<T>) -> T {
    until_given_up(find).unwrap_or_else(|| panic!("not within {LONGEST:?}: {what}"))
}

/// Waits until there is something, and returns it; `None` if there is nothing within [`LONGEST`].
pub fn until_given_up<T>(mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = find();
        if found.is_some() || began.elapsed() >= LONGEST {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
