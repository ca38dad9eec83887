//! Runs large language models whose neurons are split between a GPU and the CPU. An [`Engine`]
//! opens a model, and a [`Session`] holds one conversation. A [`Request`] asks for an answer, and
//! [`Event`]s report it:
//!
//! ```no_run
#![doc = include_str!("../examples/generate.rs")]
//! ```
//!
//! This crate is the facade of ten crates, which `ARCHITECTURE.md` beside it describes. Programs
//! import this crate alone. The modules that it re-exports from the others serve Thermocline's own
//! programs and tests. They change without notice.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bench;
pub mod session;

pub use session::{
    Engine, EngineOptions, Event, GenerationStats, Prompt, Request, Sampling, Session, SessionOptions, StopReason,
};
pub use thermocline_base::{Error, FileAction, GpuFailure, Location, Result, ScarceMemory};
#[doc(hidden)]
pub use thermocline_base::{error, files, telemetry};
#[doc(hidden)]
pub use thermocline_cpu as cpu;
#[doc(hidden)]
pub use thermocline_formats::{format, quant};
#[doc(hidden)]
pub use thermocline_gpu as gpu;
#[doc(hidden)]
pub use thermocline_lab::{calibration, eval, sparsity};
#[doc(hidden)]
pub use thermocline_model::{self as model, synth};
#[doc(hidden)]
pub use thermocline_pictures as pictures;
#[doc(hidden)]
pub use thermocline_run::{device, hybrid, placement, runtime};
#[doc(hidden)]
pub use thermocline_text as tokenizer;
