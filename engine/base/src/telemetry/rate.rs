//! Rates of recent work.

use std::time::Duration;

/// Tokens per second of computing time. Older work fades out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rate {
    tokens: f64,
    seconds: f64,
}

/// Seconds of work after which older work counts little.
const MEMORY: f64 = 2.0;

impl Rate {
    /// Counts `tokens` that took `time`.
    pub fn add(&mut self, tokens: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        let fade = MEMORY / (MEMORY + seconds);
        self.tokens = self.tokens * fade + tokens as f64;
        self.seconds = self.seconds * fade + seconds;
    }

    /// Tokens per second. 0 before the first count.
    pub fn get(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens / self.seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_converges_to_the_latest_steady_rate() {
        let mut rate = Rate::default();
        assert_eq!(rate.get(), 0.0);
        (0..100).for_each(|_| rate.add(1, Duration::from_millis(100)));
        assert!((rate.get() - 10.0).abs() < 1e-9);
        (0..100).for_each(|_| rate.add(1, Duration::from_millis(500)));
        assert!((rate.get() - 2.0).abs() < 1e-3);
    }

    #[test]
    fn rate_of_zero_duration_is_zero() {
        let mut rate = Rate::default();
        rate.add(5, Duration::ZERO);
        assert_eq!(rate.get(), 0.0);
    }
}
