//! How models are stored. [`quant`] has the weight types, one file each; [`format`] reads and writes the containers:
//! GGUF, safetensors, Hugging Face folders and PowerInfer's files.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod format;
pub mod quant;
