//! Tests of time, speed and memory, from outside. They run when nothing else does, and one at a time.

#![allow(clippy::unwrap_used)]
// Tests that ask whether a thread may have an engine look through all that wgpu is made of.
#![recursion_limit = "256"]

mod chats_killed;
mod forecasts;
mod grammar_masks;
mod hostile_clients;
mod prompts;
mod starting;
mod templates;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The right to be the only one that measures: each test has it to its end, also where they run on threads of one process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
