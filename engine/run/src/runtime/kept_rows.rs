//! Positions whose keys and values a layer keeps: all of the context, or with a window a ring of the last.

use thermocline_cpu::ops::KV_TILE;
use thermocline_model::ModelConfig;

/// Most tokens of a pass, in a cache that has a ring: a ring has room for these beside the window, so that the pass's first token
/// still sees its own. Larger chunks are computed in several passes.
pub const LONGEST_PASS: usize = 512;

/// The positions of one layer whose keys and values are held: those from `first` on, `room` of them at most.
///
/// Going back to an earlier token is possible as far as the window in front of it is still there. So a ring is no larger than it
/// has to be for one pass, but answers shorter than [`LONGEST_PASS`] can be given up for free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptRows {
    /// Positions there is room for.
    room: usize,
    /// The next token sees itself and the `window - 1` positions before it.
    window: usize,
    /// The first position that is held.
    first: usize,
    /// True if there is less room than the context is long.
    ring: bool,
}

impl KeptRows {
    /// None yet, of `layer` in a context of `capacity` tokens that are computed at most `pass` at a time.
    pub fn new(config: &ModelConfig, layer: usize, capacity: usize, pass: usize) -> Self {
        let window = config.kept_window(layer);
        // Tiles are whole, so that none wraps, and one more of them keeps the tile with a window's beginning clear of new
        // positions.
        let ring = window.and_then(|window| window.checked_add(pass)?.checked_next_multiple_of(KV_TILE));
        let ring = ring.and_then(|ring| ring.checked_add(KV_TILE));
        let room = ring.map_or(capacity, |ring| ring.min(capacity));
        KeptRows { room, window: window.unwrap_or(usize::MAX), first: 0, ring: room < capacity }
    }

    /// Positions that `layer` has room for in a context of `capacity` tokens.
    pub fn room_for(config: &ModelConfig, layer: usize, capacity: usize) -> usize {
        Self::new(config, layer, capacity, LONGEST_PASS).room
    }

    /// True if there is less room than the context is long.
    pub fn is_ring(self) -> bool {
        self.ring
    }

    /// Positions in a copy of the window in front of a token, to which a ring is taken back; `None` if all are kept.
    pub fn copied(self) -> Option<usize> {
        self.ring.then(|| self.window.saturating_sub(1))
    }

    /// Positions there is room for.
    pub fn room(self) -> usize {
        self.room
    }

    /// The first position that a token behind `tokens` others sees.
    pub fn seen_from(self, tokens: usize) -> usize {
        (tokens + 1).saturating_sub(self.window)
    }

    /// Positions before `first` are lost, those behind are held.
    pub fn restart(&mut self, first: usize) {
        self.first = first;
    }

    /// The first position that is held.
    pub fn first(self) -> usize {
        self.first
    }

    /// Positions up to `end` are written, over the oldest where there is no room.
    pub fn write_to(&mut self, end: usize) {
        self.first = self.first.max(end.saturating_sub(self.room));
    }

    /// True if a token behind `tokens` others finds all that it sees of them. If so it is true of more tokens, too, and without a
    /// token it is true once everything is forgotten.
    pub fn is_whole(self, tokens: usize) -> bool {
        self.first <= self.seen_from(tokens)
    }

    /// Every position is forgotten.
    pub fn clear(&mut self) {
        self.first = 0;
    }

    /// The same without `discard` positions behind the first `keep`, and the later ones moved down.
    pub fn without(self, keep: usize, discard: usize) -> Self {
        let first = match self.first {
            first if first <= keep => first,
            first => first.saturating_sub(discard).max(keep),
        };
        KeptRows { first, ..self }
    }

    /// The same, which holds `held` tokens, with those of `from` behind them, up to `tokens` in all.
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
        // Position 2 is the first that is held: it is in the window of position 5, and 5 tokens are before that.
        assert_eq!((0..=12).filter(|tokens| kept.is_whole(*tokens)).min(), Some(5));
        // Going back brings nothing again.
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
        // Its own tokens reach what is copied, or do not.
        assert_eq!(other.extended(kept, 20, 28).first, 16);
        assert_eq!(other.extended(kept, 8, 28).first, 20);
    }
}
