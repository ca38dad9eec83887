//! Fuzz target of the property in `tests/src/fuzzed/gguf.rs`.

#![no_main]

#[path = "../../tests/src/fuzzed/gguf.rs"]
mod gguf;
#[allow(dead_code)]
#[path = "../../tests/src/raw_gguf.rs"]
mod raw_gguf;

libfuzzer_sys::fuzz_target!(|input: &[u8]| gguf::check(input));
