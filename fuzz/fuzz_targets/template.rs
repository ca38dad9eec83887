//! Fuzz target of the property in `tests/src/fuzzed/template.rs`.

#![no_main]

#[path = "../../tests/src/fuzzed/template.rs"]
mod template;

libfuzzer_sys::fuzz_target!(|source: &str| template::check(source));
