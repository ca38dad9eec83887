//! Requests that wait in line.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::error::ApiError;

/// Counts the waiting requests, up to a limit.
#[derive(Debug)]
pub struct WaitingLine {
    waiting: AtomicUsize,
    most: usize,
}

/// A waiting request. Dropping it leaves the line.
pub struct WaitingPlace<'a>(&'a AtomicUsize);

impl WaitingLine {
    /// Creates an empty line for at most `most` requests.
    pub fn new(most: usize) -> Self {
        WaitingLine { waiting: AtomicUsize::new(0), most }
    }

    /// Adds a request, unless the line is full.
    pub fn enter(&self) -> Result<WaitingPlace<'_>, ApiError> {
        let increment = |waiting| (waiting < self.most).then_some(waiting + 1);
        let entered = self.waiting.fetch_update(SeqCst, SeqCst, increment);
        entered.map(|_| WaitingPlace(&self.waiting)).map_err(ApiError::queue_full)
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.load(SeqCst)
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
