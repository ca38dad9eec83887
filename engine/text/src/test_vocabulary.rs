//! Vocabularies for tests.

use thermocline_formats::format::{Array, Metadata, Value};

/// Metadata keys of a vocabulary for the tokenizer `model`. It has the texts `tokens`, GGUF's
/// number `kind` for each token, and equal scores.
pub fn vocabulary(model: &str, tokens: Vec<String>, kind: impl Fn(usize) -> i32) -> Metadata {
    let mut metadata = Metadata::new("m.gguf");
    let kinds = (0..tokens.len()).map(kind).collect();
    metadata.set("tokenizer.ggml.model", Value::String(model.to_owned()));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    metadata
}

/// `pieces`, followed by the tokens of all bytes.
pub fn with_bytes(pieces: &[&str]) -> Vec<String> {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    pieces.iter().map(|&piece| piece.to_owned()).chain(bytes).collect()
}
