//! Identity of an edited text.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number unique to one text of this run. A field resets the caret and the undo history when it
/// shows another text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edition(u64);

impl Default for Edition {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Edition(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
