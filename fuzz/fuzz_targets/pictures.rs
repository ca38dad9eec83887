//! Fuzz target of the property in `tests/src/fuzzed/pictures.rs`.

#![no_main]

#[path = "../../tests/src/fuzzed/pictures.rs"]
mod pictures;

libfuzzer_sys::fuzz_target!(|input: &[u8]| pictures::check(input));
