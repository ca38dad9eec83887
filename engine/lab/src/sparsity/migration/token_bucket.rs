//! Limit on the bytes that exchanges move.

use std::time::Duration;

/// A token bucket. Every token of text adds bytes, up to a capacity, and moves spend them.
///
/// Once moves have shown the speed of the bus, a token adds the bytes that the bus moves within a
/// fraction of the token's time. Before that, a token adds a fixed number of bytes.
#[derive(Debug)]
pub(super) struct TokenBucket {
    /// Bytes per token before the speed is measured.
    bytes_per_token: u64,
    /// Fraction of a token's time in which exchanges may use the bus.
    bus_share: f64,
    /// Bytes of the largest item.
    largest: u64,
    /// Recent moves. Older moves count less.
    moved: f64,
    seconds: f64,
    available: u64,
}

/// Capacity of the bucket in tokens, unless a single neuron or expert needs more.
const BURST: u64 = 16;
/// Fraction of the weight of earlier moves that remains after a move.
const KEPT: f64 = 0.9;

impl TokenBucket {
    /// Creates an empty bucket. Its capacity is at least `largest` bytes.
    pub fn new(bytes_per_token: u64, bus_share: f64, largest: u64) -> Self {
        TokenBucket { bytes_per_token, bus_share, largest, moved: 0.0, seconds: 0.0, available: 0 }
    }

    /// Adds a move of `bytes` that took `time`.
    pub fn add_move(&mut self, bytes: u64, time: Duration) {
        self.moved = self.moved * KEPT + bytes as f64;
        self.seconds = self.seconds * KEPT + time.as_secs_f64();
    }

    /// Returns the measured speed of moves in bytes per second, if there is one.
    pub fn bus(&self) -> Option<f64> {
        (self.moved > 0.0 && self.seconds > 0.0).then(|| self.moved / self.seconds)
    }

    /// Adds the bytes of `tokens` tokens that took `time` together. A time of zero is unknown.
    pub fn accrue(&mut self, tokens: usize, time: Duration) {
        let tokens = tokens as u64;
        let accrued = match self.bus().filter(|_| !time.is_zero()) {
            Some(bus) => (self.bus_share * bus * time.as_secs_f64()) as u64,
            None => self.bytes_per_token.saturating_mul(tokens),
        };
        let each = accrued.checked_div(tokens).unwrap_or(0);
        let capacity = each.saturating_mul(BURST).max(self.largest);
        self.available = self.available.saturating_add(accrued).min(capacity);
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

    const UNKNOWN: Duration = Duration::ZERO;

    #[test]
    fn bucket_holds_a_burst_or_the_largest_item() {
        let mut bucket = TokenBucket::new(10, 0.04, 100);
        assert_eq!(bucket.affordable(1), 0);
        bucket.accrue(3, UNKNOWN);
        assert_eq!((bucket.affordable(10), bucket.affordable(7), bucket.affordable(0)), (3, 4, 0));
        bucket.spend(20);
        (0..100).for_each(|_| bucket.accrue(1, UNKNOWN));
        assert_eq!(bucket.affordable(1), 160);
        let mut bucket = TokenBucket::new(1, 0.04, 1000);
        bucket.accrue(5000, UNKNOWN);
        assert_eq!(bucket.affordable(1000), 1);
    }

    #[test]
    fn measured_moves_allow_a_share_of_the_bus_time_of_a_token() {
        let mut bucket = TokenBucket::new(7, 0.04, 1);
        assert_eq!(bucket.bus(), None);
        bucket.add_move(1_000_000, Duration::from_millis(1));
        // 4 % of 50 ms at 1 GB/s are 2 MB.
        bucket.accrue(1, Duration::from_millis(50));
        assert_eq!(bucket.affordable(1000), 2000);
        // Several tokens of one pass share its time.
        bucket.spend(2_000_000);
        bucket.accrue(4, Duration::from_millis(50));
        assert_eq!(bucket.affordable(1000), 2000);
        // A pass without a time counts as before.
        bucket.spend(2_000_000);
        bucket.accrue(1, UNKNOWN);
        assert_eq!(bucket.affordable(1), 7);
    }

    /// A driver that moves buffers out of VRAM makes uploads slow. Exchanges then move less.
    #[test]
    fn uploads_that_become_slow_reduce_the_bytes() {
        let mut bucket = TokenBucket::new(7, 0.04, 1);
        (0..20).for_each(|_| bucket.add_move(1_000_000, Duration::from_millis(1)));
        let fast = bucket.bus().unwrap();
        (0..20).for_each(|_| bucket.add_move(1_000_000, Duration::from_millis(100)));
        let slow = bucket.bus().unwrap();
        assert!((fast - 1e9).abs() < 1e6 && slow < 1.2e7, "{fast} {slow}");
    }
}
