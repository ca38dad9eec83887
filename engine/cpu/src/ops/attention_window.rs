//! The window of keys that a query reads.

/// Window of keys that a query reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionWindow {
    /// Most keys that a query reads, its own included.
    pub length: usize,
    /// True if the window does not slide but begins at multiples of its length. A query then reads
    /// the keys from there up to its own (Llama 4).
    pub chunked: bool,
}

impl AttentionWindow {
    /// The window of the query's own key and all keys before it.
    pub const ALL: Self = Self::sliding(usize::MAX);

    /// Returns the window of the query's own key and the `length - 1` keys before it.
    pub const fn sliding(length: usize) -> Self {
        AttentionWindow { length, chunked: false }
    }

    /// Returns the position of the first key that a query at `position` reads.
    pub fn first_key(self, position: usize) -> usize {
        if self.chunked { position - position % self.length } else { (position + 1).saturating_sub(self.length) }
    }
}
