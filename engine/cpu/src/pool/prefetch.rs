//! Prefetching while a worker waits for a join. The worker prefetches the bytes that it will read
//! next, so that memory is not idle between two joins.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::{scratch::LINE, simd::prefetch};

/// Bytes prefetched before the next check whether the wait is over.
const STEP: usize = 256;

/// The bytes that one worker will read next. Writes and reads may race. The worker then prefetches
/// a range that it does not need, which only costs a little time.
#[derive(Debug, Default)]
pub(super) struct PrefetchRange {
    /// Changes whenever another range is set.
    number: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
}

impl PrefetchRange {
    /// Sets the range. The worker will read it from the front.
    pub fn set(&self, bytes: &[u8]) {
        self.start.store(bytes.as_ptr().addr(), Ordering::Relaxed);
        self.len.store(bytes.len(), Ordering::Relaxed);
        self.number.fetch_add(1, Ordering::Release);
    }
}

/// A worker's progress through its [`PrefetchRange`].
#[derive(Debug, Default)]
pub(super) struct Prefetcher {
    number: u32,
    at: usize,
    end: usize,
}

impl Prefetcher {
    /// Prefetches the next few lines. Returns false if there are none.
    pub fn step(&mut self, range: &PrefetchRange) -> bool {
        let number = range.number.load(Ordering::Acquire);
        if number != self.number {
            let start = range.start.load(Ordering::Relaxed);
            *self = Prefetcher { number, at: start, end: start.saturating_add(range.len.load(Ordering::Relaxed)) };
        }
        if self.at >= self.end {
            return false;
        }
        let end = self.at.saturating_add(STEP).min(self.end);
        (self.at..end).step_by(LINE).for_each(|at| prefetch(std::ptr::without_provenance(at)));
        self.at = end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetcher_steps_through_a_range_once() {
        let (range, mut prefetcher) = (PrefetchRange::default(), Prefetcher::default());
        assert!(!prefetcher.step(&range));
        let bytes = vec![0u8; 5 * STEP + 1];
        for _ in 0..2 {
            range.set(&bytes);
            assert_eq!((0..20).filter(|_| prefetcher.step(&range)).count(), 6);
        }
        range.set(&bytes);
        assert!(prefetcher.step(&range));
        range.set(&[]);
        assert!(!prefetcher.step(&range), "the later range counts");
    }
}
