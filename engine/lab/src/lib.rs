//! Measurements and training. [`sparsity`] learns which neurons fire, [`calibration`] measures the
//! speeds of this machine, and [`eval`] scores a model's answers.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod calibration;
pub mod eval;
pub mod sparsity;

use std::ops::ControlFlow;

use thermocline_base::error::{Error, Result};

/// Returns [`Error::Cancelled`] if `said`, a caller's answer, is `Break`.
fn unless_stopped(said: ControlFlow<()>) -> Result<()> {
    if said.is_break() { Err(Error::Cancelled) } else { Ok(()) }
}
