//! Time to refuse prompts.

use std::time::Instant;

use serde_json::json;
use thermocline_tests::served::{Served, TEXT, text};

use super::alone;

#[test]
fn huge_prompt_is_refused_before_it_is_encoded() {
    let _alone = alone();
    let served = Served::new();
    let words = "word ".repeat(1 << 20);
    let began = Instant::now();
    let error = served.client.post(TEXT, &text(&words, json!({}))).error(400);
    let refused = began.elapsed();
    assert_eq!(error["code"], "context_length_exceeded");
    // Encoding a sixteenth of the prompt takes longer than refusing all of it.
    let part = &words[..words.len() / 16];
    let began = Instant::now();
    let count = served.client.post("/tokenize", &json!({ "content": part })).json(200)["count"].as_u64();
    let encoded = began.elapsed();
    println!("refused after {refused:?}, a sixteenth encoded after {encoded:?}");
    assert!(count >= Some(1 << 16), "{count:?}");
    assert!(refused < encoded, "refused after {refused:?}, a sixteenth encoded after {encoded:?}");
}
