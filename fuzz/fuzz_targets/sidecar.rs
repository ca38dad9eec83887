//! Fuzz target of the property in `tests/src/fuzzed/sidecar.rs`.

#![no_main]

#[path = "../../tests/src/fuzzed/sidecar.rs"]
mod sidecar;

libfuzzer_sys::fuzz_target!(|input: &[u8]| sidecar::check(input));
