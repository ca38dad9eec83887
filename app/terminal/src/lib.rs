//! What the programs of the command line share. [`model_options`], [`engine_options`], [`generation_options`] and [`answer_options`] are
//! options; [`answer`] is one generation, [`failure`] has errors and exit codes, [`interrupt`] is Ctrl-C and [`termination`] a signal to
//! end; [`named`] are options whose values have names, [`progress`] draws bars, [`help`] prints help pages,
//! and [`program`] is the course of a program. [`llama_flags`] translates the flags of llama.cpp's programs.
//!
//! Exit codes: 0 done, 1 something failed, 2 bad input or usage, 130 interrupted.

// They panic where nobody reads: `standard_error` and `answer` print.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// `Engine: Send` is proved through all types of wgpu.
#![recursion_limit = "256"]
#![allow(missing_docs, reason = "help pages show the doc comments of options")]

pub mod answer;
pub mod answer_options;
pub mod console;
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
