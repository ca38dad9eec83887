//! Property of chat templates: for any template, a rendering must end soon and stay small.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use thermocline_engine::{
    format::{Array, Metadata, Value},
    tokenizer::{ChatMessage, ChatTemplate, Tokenizer},
};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let mut metadata = Metadata::new("fuzz.gguf");
    metadata.set("tokenizer.ggml.model", Value::String("llama".to_owned()));
    let tokens = ["<unk>", "<s>", "</s>", "a"].map(str::to_owned).to_vec();
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![2, 3, 3, 1])));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    Tokenizer::from_metadata(&metadata).expect("a small vocabulary")
});

/// Checks the property on one input.
pub fn check(source: &str) {
    let start = Instant::now();
    let template = ChatTemplate::from_source(source, "fuzz", &TOKENIZER, "");
    let messages = [("system", "Be brief."), ("user", "Hello"), ("assistant", " Hi "), ("user", "Bye")]
        .map(|(role, content)| ChatMessage::new(role, content));
    let _ = template.render(&messages, true);
    assert!(start.elapsed() < Duration::from_secs(5));
}
