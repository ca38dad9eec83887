//! The Thermocline application. [`cli`] is the command line, which opens the window if no command
//! is given. [`machines`] describes PCs by their published figures.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// The compiler proves `Engine: Send` through all types of wgpu.
#![recursion_limit = "256"]

pub mod cli;
pub mod machines;
