//! The limit on bytes moved per token.

/// A token bucket: bytes accrue with every token of text up to a capacity and are spent by moves.
#[derive(Debug)]
pub(super) struct TokenBucket {
    bytes_per_token: u64,
    capacity: u64,
    available: u64,
}

/// Tokens' worth of bytes that the bucket holds, unless a single neuron or expert is larger.
const BURST: u64 = 16;

impl TokenBucket {
    /// An empty bucket that `bytes_per_token` flow into and that has room for `largest` bytes at least.
    pub fn new(bytes_per_token: u64, largest: u64) -> Self {
        let capacity = bytes_per_token.saturating_mul(BURST).max(largest);
        TokenBucket { bytes_per_token, capacity, available: 0 }
    }

    /// Adds the bytes of `tokens` tokens.
    pub fn accrue(&mut self, tokens: usize) {
        let accrued = self.bytes_per_token.saturating_mul(tokens as u64);
        self.available = self.available.saturating_add(accrued).min(self.capacity);
    }

    /// Items of `bytes` each that can be paid for now.
    pub fn affordable(&self, bytes: u64) -> usize {
        self.available.checked_div(bytes).unwrap_or(0) as usize
    }

    /// Removes `bytes`, of which no more than [`TokenBucket::affordable`] says may be asked for.
    pub fn spend(&mut self, bytes: u64) {
        self.available = self.available.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_holds_a_burst_or_the_largest_item() {
        let mut bucket = TokenBucket::new(10, 100);
        assert_eq!(bucket.affordable(1), 0);
        bucket.accrue(3);
        assert_eq!((bucket.affordable(10), bucket.affordable(7), bucket.affordable(0)), (3, 4, 0));
        bucket.spend(20);
        bucket.accrue(usize::MAX);
        assert_eq!(bucket.affordable(1), 160);
        let mut bucket = TokenBucket::new(1, 1000);
        bucket.accrue(5000);
        assert_eq!(bucket.affordable(1000), 1);
    }
}
