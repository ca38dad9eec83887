//! Code that the command-line programs share. [`model_options`], [`engine_options`],
//! [`generation_options`] and [`answer_options`] are options. [`named`] parses options whose values
//! have names, and [`llama_flags`] translates the flags of llama.cpp's programs. [`answer`] runs
//! one generation, and [`failure`] has errors and exit codes. [`interrupt`] handles Ctrl-C, and
//! [`termination`] handles SIGTERM. [`progress`] draws bars, [`help`] prints help pages, and
//! [`program`] runs a program from its arguments to its exit code.
//!
//! Exit codes: 0 done, 1 something failed, 2 bad input or usage, 130 interrupted.

// The print macros panic if the output is closed. `standard_error` and `answer`
// print instead.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// The compiler proves `Engine: Send` through all types of wgpu.
#![recursion_limit = "256"]
#![allow(missing_docs, reason = "help pages show the doc comments of options")]

pub mod answer;
pub mod answer_options;
pub mod companion_options;
pub mod console;
mod engine_notes;
pub mod engine_options;
pub mod failure;
pub mod generation_options;
pub mod help;
pub mod interrupt;
pub mod level;
pub mod llama_flags;
pub mod model_options;
pub mod named;
pub mod program;
pub mod progress;
pub mod standard_error;
pub mod termination;
