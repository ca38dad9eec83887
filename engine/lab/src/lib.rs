//! Measures and learns. [`sparsity`] learns which neurons fire, [`calibration`] measures this machine, and [`eval`]
//! scores a model's answers.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod calibration;
pub mod eval;
pub mod sparsity;

use std::ops::ControlFlow;

use thermocline_base::error::{Error, Result};

/// [`Error::Cancelled`] if a caller that was asked has said so.
fn unless_stopped(said: ControlFlow<()>) -> Result<()> {
    if said.is_break() { Err(Error::Cancelled) } else { Ok(()) }
}
