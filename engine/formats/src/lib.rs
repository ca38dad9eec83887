//! How models are stored. [`quant`] has the weight types, one file each. [`format`] reads and
//! writes the containers: GGUF, safetensors, Hugging Face folders and PowerInfer's files.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod format;
pub mod quant;
