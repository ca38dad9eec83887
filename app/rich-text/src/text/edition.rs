//! The identity of a text that is edited.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other text of this run has. A field forgets the caret and the undo history
/// when it shows another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edition(u64);

impl Default for Edition {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Edition(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
