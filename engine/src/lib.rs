//! The Thermocline inference engine: formats, tokenizer, models, CPU and GPU kernels and sessions.
//!
//! Floors, from the top; every arrow points down:
//! [`bench`] and [`eval`]; [`session`]; [`calibration`]; [`hybrid`]; [`device`] and [`sparsity`]; [`placement`]; [`runtime`] and [`synth`]; [`model`];
//! [`cpu`], [`gpu`] and [`tokenizer`]; [`format`]; [`quant`]; on the ground [`error`], [`files`] and [`telemetry`]. `ARCHITECTURE.md` beside this crate has a line on each and
//! follows one token through.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bench;
pub mod calibration;
pub mod cpu;
pub mod device;
pub mod error;
pub mod eval;
pub mod files;
pub mod format;
pub mod gpu;
pub mod hybrid;
pub mod model;
pub mod placement;
pub mod quant;
pub mod runtime;
pub mod session;
pub mod sparsity;
pub mod synth;
pub mod telemetry;
pub mod tokenizer;

pub use error::{Error, FileAction, GpuFailure, Location, Result, ScarceMemory};
