//! The window of keys that a query reads.

use std::ops::Range;

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
}

/// The keys that queries read.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenKeys<'a> {
    pub window: AttentionWindow,
    /// Ranges of positions. A query in one of them also reads the later keys of the range.
    pub whole: &'a [Range<usize>],
    /// End of the positions of all queries. A window that reaches ahead ends there.
    pub end: usize,
}

impl SeenKeys<'_> {
    /// The keys that the query at `position` reads.
    pub fn of(&self, position: usize) -> Range<usize> {
        self.of_all(position..position + 1)
    }

    /// The range of the keys that queries at `positions` read.
    pub fn of_all(&self, positions: Range<usize>) -> Range<usize> {
        let ranges = self.whole.iter().filter(|range| range.start < positions.end && positions.start < range.end);
        let end = positions.end.saturating_add(self.window.ahead).min(self.end.max(positions.end));
        self.window.first_key(positions.start)..ranges.fold(end, |end, range| end.max(range.end))
    }
}
