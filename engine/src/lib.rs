//! The Thermocline inference engine: formats, tokenizer, models, CPU and GPU kernels and sessions.
//!
//! Floors, from the top; every arrow points down:
//! [`bench`] and [`eval`], [`session`], [`sparsity`], [`model`]; then side by side [`cpu`], [`gpu`], [`tokenizer`], [`synth`]; then [`format`];
//! on the ground [`error`] and [`telemetry`]. `ARCHITECTURE.md` beside this crate has a paragraph on each and
//! follows one token through.

pub mod bench;
pub mod cpu;
pub mod error;
pub mod eval;
pub mod format;
pub mod gpu;
pub mod model;
pub mod session;
pub mod sparsity;
pub mod synth;
pub mod telemetry;
pub mod tokenizer;

pub use error::{Error, Location, Result};
