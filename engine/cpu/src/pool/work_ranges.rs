//! Work stealing over indices. Every worker begins with a contiguous range, and takes from the
//! others' ranges when it is done.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering},
};

/// Pads array elements so that no two share a cache line.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub T);

/// Indices `0..n`, each taken once. Every worker has a contiguous range.
pub(super) struct WorkRanges(Vec<Padded<AtomicU64>>);

impl WorkRanges {
    pub fn new(n: usize, workers: usize) -> Self {
        // Each end of a range takes half a word.
        assert!(u32::try_from(n).is_ok(), "{n} items at once");
        let pack = |worker: usize| {
            let start = (n * worker / workers) as u64;
            let end = (n * (worker + 1) / workers) as u64;
            Padded(AtomicU64::new(start << 32 | end))
        };
        WorkRanges((0..workers).map(pack).collect())
    }

    /// Takes an index from the front of the worker's own range, or else from the back of another
    /// range.
    pub fn next(&self, worker: usize) -> Option<usize> {
        let own = self.0[worker].0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |range| {
            (range >> 32 < range & 0xffff_ffff).then(|| range + (1 << 32))
        });
        if let Ok(range) = own {
            return Some((range >> 32) as usize);
        }
        (1..self.0.len()).find_map(|step| {
            let other = &self.0[(worker + step) % self.0.len()].0;
            let taken = other.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |range| {
                (range >> 32 < range & 0xffff_ffff).then(|| range - 1)
            });
            taken.ok().map(|range| (range & 0xffff_ffff) as usize - 1)
        })
    }
}

/// A mutable slice whose items are taken by different workers.
pub(super) struct DisjointItems<'a, T> {
    first: *mut T,
    len: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing it hands out `&mut T` to other threads, each item to one thread, which `T: Send`
// allows.
unsafe impl<T: Send> Sync for DisjointItems<'_, T> {}

impl<'a, T> DisjointItems<'a, T> {
    pub fn new(items: &'a mut [T]) -> Self {
        DisjointItems { first: items.as_mut_ptr(), len: items.len(), marker: PhantomData }
    }

    /// # Safety
    /// `at` is below `len`, and each `at` is requested at most once.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self, at: usize) -> &mut T {
        debug_assert!(at < self.len);
        // SAFETY: in bounds of the slice behind `first`, and not aliased, as the caller promises.
        unsafe { &mut *self.first.add(at) }
    }
}
