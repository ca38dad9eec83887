//! Fuzz target of the property in `tests/src/fuzzed/gpuidx.rs`.

#![no_main]

#[path = "../../tests/src/fuzzed/gpuidx.rs"]
mod gpuidx;

libfuzzer_sys::fuzz_target!(|input: &[u8]| gpuidx::check(input));
