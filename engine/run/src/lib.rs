//! Computes models. [`runtime`] runs the forward pass on the CPU, and [`device`] records it on a
//! GPU. [`placement`] decides which neurons, layers and caches are in VRAM. [`hybrid`] splits a
//! layer between both processors.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod device;
pub mod hybrid;
pub mod placement;
pub mod runtime;
