//! Positions whose keys and values a layer keeps: the whole context, or with a window the last
//! positions in a ring.

use thermocline_cpu::ops::KV_TILE;
use thermocline_model::ModelConfig;

/// Most tokens of a pass if a cache has a ring, unless a device computes longer chunks. The ring
/// has room for these tokens besides the window, so that the first token of the pass still sees its
/// whole window. Larger chunks are computed in several passes.
pub const LONGEST_PASS: usize = 512;

/// Most tokens of a pass that rings have room for, if a processor computes chunks of `chunk`
/// tokens.
pub(crate) const fn pass_of_chunks(chunk: usize) -> usize {
    if chunk > LONGEST_PASS { chunk } else { LONGEST_PASS }
}

/// The positions of one layer whose keys and values are held: from `first`, at most `room`
/// positions.
///
/// A cache can go back to an earlier token if that token's window is still held. A ring is
/// therefore only as large as one pass requires. Even so, answers shorter than [`LONGEST_PASS`] can
/// be removed without recomputing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptRows {
    /// Number of positions with room.
    room: usize,
    /// The next token sees itself and the `window - 1` positions before it.
    window: usize,
    /// The first position held.
    first: usize,
    /// True if the room is smaller than the context.
    ring: bool,
}

impl KeptRows {
    /// Starts without positions, for `layer` in a context of `capacity` tokens that are computed at
    /// most `pass` at a time.
    pub fn new(config: &ModelConfig, layer: usize, capacity: usize, pass: usize) -> Self {
        let window = config.kept_window(layer);
        // The ring is whole tiles, so that no tile wraps. One additional tile keeps the tile at a
        // window's beginning clear of new positions.
        let ring = window.and_then(|window| window.checked_add(pass)?.checked_next_multiple_of(KV_TILE));
        let ring = ring.and_then(|ring| ring.checked_add(KV_TILE));
        let room = ring.map_or(capacity, |ring| ring.min(capacity));
        KeptRows { room, window: window.unwrap_or(usize::MAX), first: 0, ring: room < capacity }
    }

    /// Number of positions for which `layer` has room in a context of `capacity` tokens, on a
    /// processor that computes chunks of `chunk` tokens.
    pub fn room_for(config: &ModelConfig, layer: usize, capacity: usize, chunk: usize) -> usize {
        Self::new(config, layer, capacity, pass_of_chunks(chunk)).room
    }

    /// True if the room is smaller than the context.
    pub fn is_ring(self) -> bool {
        self.ring
    }

    /// Positions in a copy of the window before a token. A ring is restored from the copy. `None`
    /// if all positions are kept.
    pub fn copied(self) -> Option<usize> {
        self.ring.then(|| self.window.saturating_sub(1))
    }

    /// Number of positions with room.
    pub fn room(self) -> usize {
        self.room
    }

    /// The first position that the token after `tokens` tokens sees.
    pub fn seen_from(self, tokens: usize) -> usize {
        (tokens + 1).saturating_sub(self.window)
    }

    /// Marks positions before `first` as lost and later ones as held.
    pub fn restart(&mut self, first: usize) {
        self.first = first;
    }

    /// The first position held.
    pub fn first(self) -> usize {
        self.first
    }

    /// Notes that positions up to `end` are written. Without room they overwrite the oldest
    /// positions.
    pub fn write_to(&mut self, end: usize) {
        self.first = self.first.max(end.saturating_sub(self.room));
    }

    /// True if the window of the token after `tokens` tokens is held. It is then also true for more
    /// tokens. For 0 tokens it is true after [`KeptRows::clear`].
    pub fn is_whole(self, tokens: usize) -> bool {
        self.first <= self.seen_from(tokens)
    }

    /// Forgets every position.
    pub fn clear(&mut self) {
        self.first = 0;
    }

    /// Returns the rows without the `discard` positions after the first `keep`, with later
    /// positions moved down.
    pub fn without(self, keep: usize, discard: usize) -> Self {
        let first = match self.first {
            first if first <= keep => first,
            first => first.saturating_sub(discard).max(keep),
        };
        KeptRows { first, ..self }
    }

    /// Returns the rows, which hold `held` tokens, extended by the rows of `from` up to `tokens`
    /// tokens.
    pub fn extended(self, from: Self, held: usize, tokens: usize) -> Self {
        let mut extended = KeptRows { first: if from.first <= held { self.first } else { from.first }, ..self };
        extended.write_to(tokens);
        extended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(window: usize, room: usize) -> KeptRows {
        KeptRows { room, window, first: 0, ring: true }
    }

    #[test]
    fn a_ring_goes_back_as_far_as_it_holds_the_window() {
        let mut kept = ring(4, 10);
        kept.write_to(10);
        assert!((0..=10).all(|tokens| kept.is_whole(tokens)));
        kept.write_to(12);
        // Position 2 is the first one held. It is in the window of position 5, which 5 tokens
        // precede.
        assert_eq!((0..=12).filter(|tokens| kept.is_whole(*tokens)).min(), Some(5));
        // Going back does not restore lost positions.
        kept.write_to(6);
        assert!(kept.is_whole(5) && !kept.is_whole(4) && !kept.is_whole(0));
        kept.clear();
        assert!(kept.is_whole(0));
        let mut all = KeptRows { window: usize::MAX, ..ring(0, 20) };
        all.write_to(20);
        assert!((0..=20).all(|tokens| all.is_whole(tokens)));
    }

    #[test]
    fn removed_and_copied_positions_are_reckoned_with() {
        let mut kept = ring(4, 10);
        kept.write_to(30);
        assert_eq!([(2, 10), (2, 18), (2, 20), (25, 3)].map(|(keep, n)| kept.without(keep, n).first), [10, 2, 2, 20]);
        let mut other = ring(4, 12);
        other.write_to(8);
        // The cache's own tokens reach the copied ones, or they do not.
        assert_eq!(other.extended(kept, 20, 28).first, 16);
        assert_eq!(other.extended(kept, 8, 28).first, 20);
    }
}
