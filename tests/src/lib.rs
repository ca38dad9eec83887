//! Helpers for end-to-end tests.

pub mod golden;
pub mod gpu;
pub mod raw_gguf;
pub mod terminal;
pub mod vocabularies;
