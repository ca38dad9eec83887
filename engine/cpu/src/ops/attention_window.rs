//! The window of keys that a query reads.

use std::ops::Range;

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

/// The keys that queries read.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenKeys<'a> {
    pub window: AttentionWindow,
    /// Ranges of positions. A query in one of them also reads the later keys of the range.
    pub whole: &'a [Range<usize>],
}

impl SeenKeys<'_> {
    /// The keys that the query at `position` reads.
    pub fn of(&self, position: usize) -> Range<usize> {
        self.of_all(position..position + 1)
    }

    /// The range of the keys that queries at `positions` read.
    pub fn of_all(&self, positions: Range<usize>) -> Range<usize> {
        let ranges = self.whole.iter().filter(|range| range.start < positions.end && positions.start < range.end);
        self.window.first_key(positions.start)..ranges.fold(positions.end, |end, range| end.max(range.end))
    }
}
