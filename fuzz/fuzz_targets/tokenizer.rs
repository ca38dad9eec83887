//! Fuzz target of the property in `tests/src/fuzzed/tokenizer.rs`.

#![no_main]

#[path = "../../tests/src/fuzzed/tokenizer.rs"]
mod tokenizer;
#[allow(dead_code)]
#[path = "../../tests/src/vocabularies.rs"]
mod vocabularies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| tokenizer::check(input));
