//! Tests of time, speed and memory, from outside. They run one at a time, without other programs.

#![allow(clippy::unwrap_used)]
// The compiler checks whether an engine can be sent to a thread through all types of wgpu.
#![recursion_limit = "256"]

mod chats_killed;
mod forecasts;
mod grammar_masks;
mod hostile_clients;
mod prompts;
mod starting;
mod templates;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test measures. Each test holds the guard to its end, even if tests run on
/// threads of one process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
