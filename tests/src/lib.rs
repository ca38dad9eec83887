//! Helpers for end-to-end tests.

// The compiler checks whether an engine can be sent to a thread through all types of wgpu.
#![recursion_limit = "256"]

pub mod dice;
pub mod engines;
pub mod events;
pub mod fuzzed;
pub mod golden;
pub mod gpu;
pub mod held_out;
pub mod http;
pub mod moe;
pub mod mutations;
pub mod own_process;
pub mod parrot;
pub mod picture_bombs;
pub mod pictured;
pub mod random_files;
pub mod raw_gguf;
pub mod served;
pub mod terminal;
pub mod vocabularies;
pub mod wait;
