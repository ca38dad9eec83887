//! Limit on the bytes moved per token.

/// A token bucket. Every token of text adds bytes, up to a capacity, and moves spend them.
#[derive(Debug)]
pub(super) struct TokenBucket {
    bytes_per_token: u64,
    capacity: u64,
    available: u64,
}

/// Capacity of the bucket in tokens, unless a single neuron or expert needs more.
const BURST: u64 = 16;

impl TokenBucket {
    /// Creates an empty bucket that each token fills by `bytes_per_token`. Its capacity is at least
    /// `largest` bytes.
    pub fn new(bytes_per_token: u64, largest: u64) -> Self {
        let capacity = bytes_per_token.saturating_mul(BURST).max(largest);
        TokenBucket { bytes_per_token, capacity, available: 0 }
    }

    /// Adds the bytes of `tokens` tokens.
    pub fn accrue(&mut self, tokens: usize) {
        let accrued = self.bytes_per_token.saturating_mul(tokens as u64);
        self.available = self.available.saturating_add(accrued).min(self.capacity);
    }

    /// Returns how many items of `bytes` each the bucket can pay for now.
    pub fn affordable(&self, bytes: u64) -> usize {
        self.available.checked_div(bytes).unwrap_or(0) as usize
    }

    /// Removes `bytes`, at most what [`TokenBucket::affordable`] allows.
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
