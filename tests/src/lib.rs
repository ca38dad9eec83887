//! Helpers for end-to-end tests.

pub mod terminal;
