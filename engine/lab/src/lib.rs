//! Measures and learns. [`sparsity`] learns which neurons fire, [`calibration`] measures this machine, and [`eval`]
//! scores a model's answers.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod calibration;
pub mod eval;
pub mod sparsity;
