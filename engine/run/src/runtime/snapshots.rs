//! Copies of a conversation's memory after some numbers of its tokens, to which the conversation
//! can go back.
//!
//! Recurrent states combine all earlier tokens and cannot forget the last ones, and rings of
//! windows have lost the first ones. Copies are therefore kept at the borders of messages, where
//! the next prompt is likely to branch off, and every [`INTERVAL`] tokens. Going back to any token
//! restores the snapshot before it; the tokens in between are computed again.

/// Most tokens between two snapshots.
pub(super) const INTERVAL: usize = 256;
/// Most snapshots, and their most bytes. A few snapshots are kept in any case.
pub(super) const MOST_SNAPSHOTS: usize = 16;
const MOST_BYTES: u64 = 512 << 20;
const FEW_SNAPSHOTS: usize = 4;
/// Number of newest snapshots that are never dropped for others.
const NEWEST: usize = 2;

/// Most snapshots if each takes `bytes` bytes.
fn most(bytes: u64) -> usize {
    let fit = usize::try_from(MOST_BYTES / bytes.max(1)).unwrap_or(usize::MAX);
    fit.clamp(FEW_SNAPSHOTS, MOST_SNAPSHOTS)
}

/// Most bytes of snapshots in a conversation of at most `capacity` tokens, if each takes `bytes`.
/// No two snapshots are after the same token.
pub(super) fn most_bytes(bytes: u64, capacity: usize) -> u64 {
    bytes.saturating_mul(most(bytes).min(capacity) as u64)
}

/// A copy of the memory after some number of tokens.
#[derive(Debug)]
pub(super) struct TokenSnapshot<T> {
    pub tokens: usize,
    pub of: T,
}

/// The snapshots of one conversation, by ascending number of tokens.
#[derive(Debug)]
pub(super) struct Snapshots<T>(Vec<TokenSnapshot<T>>);

impl<T> Default for Snapshots<T> {
    fn default() -> Self {
        Snapshots(Vec::new())
    }
}

impl<T> Snapshots<T> {
    /// True if a snapshot is due after `tokens` tokens because the last one is too old.
    pub fn is_due(&self, tokens: usize) -> bool {
        tokens >= self.last().map_or(0, |last| last.tokens) + INTERVAL
    }

    /// True if there is a snapshot after `tokens` tokens, or nothing to copy.
    pub fn is_known(&self, tokens: usize) -> bool {
        tokens == 0 || self.0.iter().any(|snapshot| snapshot.tokens == tokens)
    }

    /// Makes room for one more snapshot of `bytes` bytes by dropping the least useful ones. Returns
    /// the last dropped one for reuse.
    pub fn take_redundant(&mut self, bytes: u64) -> Option<T> {
        let mut taken = None;
        while self.0.len() >= most(bytes) {
            taken = Some(self.0.remove(self.redundant()?).of);
        }
        taken
    }

    /// The index of the snapshot whose neighbours are nearest.
    fn redundant(&self) -> Option<usize> {
        let tokens = |at: usize| self.0[at].tokens;
        let old = 0..self.0.len().saturating_sub(NEWEST);
        old.min_by_key(|at| tokens(at + 1) - at.checked_sub(1).map_or(0, tokens))
    }

    /// Adds a snapshot after `tokens` tokens. All other snapshots must be after fewer tokens.
    pub fn push(&mut self, tokens: usize, of: T) {
        self.0.push(TokenSnapshot { tokens, of });
    }

    /// The last snapshot.
    pub fn last(&self) -> Option<&TokenSnapshot<T>> {
        self.0.last()
    }

    /// The snapshots after at most `tokens` tokens, last first.
    pub fn until(&self, tokens: usize) -> impl Iterator<Item = &TokenSnapshot<T>> {
        self.0.iter().rev().filter(move |snapshot| snapshot.tokens <= tokens)
    }

    /// Drops the snapshots after more than `tokens` tokens.
    pub fn truncate(&mut self, tokens: usize) {
        self.0.retain(|snapshot| snapshot.tokens <= tokens);
    }

    /// All snapshots.
    pub fn iter(&self) -> impl Iterator<Item = &TokenSnapshot<T>> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_few_and_spread_out() {
        let mut snapshots = Snapshots::default();
        for tokens in 1..=100 * INTERVAL {
            if snapshots.is_due(tokens) {
                snapshots.take_redundant(20);
                snapshots.push(tokens, ());
            }
        }
        let tokens: Vec<usize> = snapshots.iter().map(|snapshot| snapshot.tokens).collect();
        assert_eq!(tokens.len(), MOST_SNAPSHOTS);
        assert!(tokens.is_sorted() && *tokens.last().unwrap() == 100 * INTERVAL, "{tokens:?}");
        let gap = tokens.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap().max(tokens[0]);
        assert!(gap <= 16 * INTERVAL, "{tokens:?}");
        assert!(snapshots.is_known(tokens[3]) && snapshots.is_known(0) && !snapshots.is_known(3));
        let before: Vec<usize> = snapshots.until(tokens[3] + 1).map(|snapshot| snapshot.tokens).collect();
        assert_eq!(before, [tokens[3], tokens[2], tokens[1], tokens[0]]);
        // Only a few large snapshots are kept.
        assert!(snapshots.take_redundant(MOST_BYTES / 8).is_some());
        assert_eq!(snapshots.iter().count(), 7);
        assert!(snapshots.take_redundant(MOST_BYTES).is_some());
        assert_eq!(snapshots.iter().count(), FEW_SNAPSHOTS - 1);
        assert!(snapshots.take_redundant(MOST_BYTES).is_none());
        let first = snapshots.iter().next().map(|snapshot| snapshot.tokens).unwrap();
        snapshots.truncate(first);
        assert_eq!(snapshots.iter().count(), 1);
    }

    #[test]
    fn bytes_of_snapshots_have_a_limit() {
        for (one, capacity, all) in [
            (0, 4096, 0),
            (1 << 20, 4096, 16 << 20),
            (1 << 20, 3, 3 << 20),
            (100 << 20, 4096, 500 << 20),
            (300 << 20, 4096, 1200 << 20),
            (u64::MAX, 4096, u64::MAX),
        ] {
            assert_eq!(most_bytes(one, capacity), all, "{one} bytes, {capacity} tokens");
        }
    }
}
