//! Waits for events outside a test.

use std::time::{Duration, Instant};

/// Maximum time that a test waits for an event. A busy machine may be slow, so only a wait for an
/// event that never comes takes this long.
pub const LONGEST: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
///
/// # Panics
/// If the condition does not hold within [`LONGEST`].
#[track_caller]
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    until(what, || is().then_some(()));
}

/// Waits until `find` returns a value, and returns it.
///
/// # Panics
/// If there is no value within [`LONGEST`].
#[track_caller]
pub fn until<T>(what: &str, find: impl FnMut() -> Option<T>) -> T {
    until_given_up(find).unwrap_or_else(|| panic!("not within {LONGEST:?}: {what}"))
}

/// Waits until `find` returns a value. Returns `None` if there is no value within [`LONGEST`].
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
