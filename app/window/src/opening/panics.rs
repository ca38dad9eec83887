//! Panics by which libraries report that something is missing or broken.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records the place of a contained panic of this thread, in case it is a bug.
pub fn note_place(place: String) {
    PLACE.replace(Some(place));
}

/// Takes the place of the latest contained panic of this thread.
pub fn noted_place() -> Option<String> {
    PLACE.take()
}

/// True if a panic of this thread is an expected error, not a bug to report.
pub fn are_contained() -> bool {
    CONTAINED.get()
}

/// Runs `f`. If it panics, returns the last line of the message, where graphics libraries put the
/// innermost cause.
pub fn contained<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    let before = CONTAINED.replace(true);
    let ended = catch_unwind(AssertUnwindSafe(f));
    CONTAINED.set(before);
    ended.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("it panicked and does not say why");
        tracing::warn!(panic = text, "a library panicked");
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or(text).to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contained_panic_returns_its_innermost_reason() {
        assert_eq!(contained(|| 7), Ok(7));
        assert!(contained(are_contained).unwrap() && !are_contained());
        let said =
            contained(|| panic!("wgpu error: Validation Error\n\nCaused by:\n  In a call\n    Not implemented\n"));
        assert_eq!(said, Err::<(), _>("Not implemented".to_owned()));
        assert_eq!(contained(|| std::panic::panic_any(7)), Err::<(), _>("it panicked and does not say why".to_owned()));
        assert!(!are_contained());
    }
}
