//! Parts that every crate of the engine needs: [`error`], [`files`] that are written whole or not
//! at all, and [`telemetry`].

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod error;
pub mod files;
pub mod telemetry;
mod tier;

pub use error::{Error, FileAction, GpuFailure, Location, Result, ScarceMemory};
pub use tier::{KernelFeatures, Tier};
