//! The Thermocline application. [`cli`] is the command line, which opens the window if no command is given. [`machines`] are PCs by
//! their published figures.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// `Engine: Send` is proved through all types of wgpu.
#![recursion_limit = "256"]

pub mod cli;
pub mod machines;
