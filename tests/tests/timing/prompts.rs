//! Time of prompts that are refused.

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
    let began = Instant::now();
    assert!(served.client.post("/tokenize", &json!({ "content": words })).json(200)["count"].as_u64() > Some(1 << 20));
    let encoded = began.elapsed();
    println!("refused after {refused:?}, encoded after {encoded:?}");
    assert!(refused < encoded / 2, "refused after {refused:?}, encoded after {encoded:?}");
}
