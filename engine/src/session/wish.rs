//! What callers last asked of a running engine. Only the last of each kind counts: a slider may move faster than the engine.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use super::SparsityChoice;

/// What is wanted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub sparsity: SparsityChoice,
    /// Most bytes of device memory; `None`: what is free.
    pub budget: Option<u64>,
    pub adaptive: bool,
}

/// The wish, changed by callers and taken up by the engine thread.
#[derive(Debug)]
pub(super) struct Wishes {
    now: Mutex<Wish>,
    /// Whether the thread has been told and has not looked yet.
    told: AtomicBool,
}

impl Wishes {
    pub fn new(wish: Wish) -> Self {
        Wishes { now: Mutex::new(wish), told: AtomicBool::new(false) }
    }

    /// What was asked for last.
    pub fn read(&self) -> Wish {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it. Returns whether the thread has to be told.
    #[must_use]
    pub fn change(&self, change: impl FnOnce(&mut Wish)) -> bool {
        change(&mut self.now.lock().unwrap_or_else(PoisonError::into_inner));
        !self.told.swap(true, SeqCst)
    }

    /// What the thread is to do.
    pub fn take(&self) -> Wish {
        // In this order: what is asked for from here on is told again.
        self.told.store(false, SeqCst);
        self.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_is_told_once_and_sees_the_last() {
        let wishes = Wishes::new(Wish { sparsity: SparsityChoice::Auto, budget: None, adaptive: false });
        assert!(wishes.change(|wish| wish.budget = Some(1)));
        assert!(!wishes.change(|wish| wish.budget = Some(2)));
        assert!(!wishes.change(|wish| wish.adaptive = true));
        let taken = wishes.take();
        assert_eq!((taken.budget, taken.adaptive), (Some(2), true));
        assert!(wishes.change(|wish| wish.budget = Some(3)));
        assert_eq!(wishes.read().budget, Some(3));
    }
}
