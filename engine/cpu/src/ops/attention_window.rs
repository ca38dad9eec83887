//! The window of keys that a query reads.

/// Window of keys that a query reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionWindow {
    /// Most keys up to its own that a query reads, its own included.
    pub length: usize,
    /// True if the window does not slide but begins at multiples of its length. A query then reads
    /// the keys from there up to its own (Llama 4).
    pub chunked: bool,
    /// Most keys after its own that a query reads; 0 in models that generate text.
    pub ahead: usize,
}

impl AttentionWindow {
    /// The window of the query's own key and all keys before it.
    pub const ALL: Self = Self::sliding(usize::MAX);

    /// The window of all keys, before and after the query's own (encoders).
    pub const BOTH_DIRECTIONS: Self = Self::symmetric(usize::MAX);

    /// Returns the window of the query's own key and the `length - 1` keys before it.
    pub const fn sliding(length: usize) -> Self {
        AttentionWindow { length, chunked: false, ahead: 0 }
    }

    /// Returns the window of the query's own key and up to `beside` keys on each side.
    pub const fn symmetric(beside: usize) -> Self {
        AttentionWindow { length: beside.saturating_add(1), chunked: false, ahead: beside }
    }

    /// Returns the position of the first key that a query at `position` reads.
    pub fn first_key(self, position: usize) -> usize {
        if self.chunked { position - position % self.length } else { (position + 1).saturating_sub(self.length) }
    }

    /// Returns the end of the keys that a query at `position` reads, if there are `keys` keys.
    pub fn end_key(self, position: usize, keys: usize) -> usize {
        (position + 1).saturating_add(self.ahead).min(keys)
    }
}
