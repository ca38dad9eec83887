//! The Thermocline application: everything of the program that is not the engine. [`cli`] is the terminal; [`builtin`]
//! is the model inside the binary.

pub mod builtin;
pub mod cli;
