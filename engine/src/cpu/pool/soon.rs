//! What workers will read soon: who has to wait brings it near meanwhile, so that the memory is not idle between two joins.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::cpu::simd::prefetch;

/// Bytes asked for between two looks at whether the wait is over.
const STEP: usize = 256;
/// Bytes of a cache line.
const LINE: usize = 64;

/// What one worker is told. Who sets it and who reads it may cross: then a stretch of addresses is asked for that nobody needs,
/// which costs a little time and nothing else.
#[derive(Debug, Default)]
pub(super) struct Soon {
    /// Changes whenever another stretch is set.
    number: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Soon {
    /// `bytes` will be read, from the front.
    pub fn set(&self, bytes: &[u8]) {
        self.start.store(bytes.as_ptr().addr(), Ordering::Relaxed);
        self.len.store(bytes.len(), Ordering::Relaxed);
        self.number.fetch_add(1, Ordering::Release);
    }
}

/// How far a worker is with what it was told.
#[derive(Debug, Default)]
pub(super) struct Near {
    number: u32,
    at: usize,
    end: usize,
}

impl Near {
    /// Asks for the next few lines; false if there are none.
    pub fn step(&mut self, soon: &Soon) -> bool {
        let number = soon.number.load(Ordering::Acquire);
        if number != self.number {
            let start = soon.start.load(Ordering::Relaxed);
            *self = Near { number, at: start, end: start.saturating_add(soon.len.load(Ordering::Relaxed)) };
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
    fn a_stretch_is_asked_for_once() {
        let (soon, mut near) = (Soon::default(), Near::default());
        assert!(!near.step(&soon));
        let bytes = vec![0u8; 5 * STEP + 1];
        for _ in 0..2 {
            soon.set(&bytes);
            assert_eq!((0..20).filter(|_| near.step(&soon)).count(), 6);
        }
        soon.set(&bytes);
        assert!(near.step(&soon));
        soon.set(&[]);
        assert!(!near.step(&soon), "what was told later counts");
    }
}
