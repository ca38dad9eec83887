//! Routes about tokens and figures.

#![allow(clippy::unwrap_used)]

use serde_json::json;
use thermocline_engine::tokenizer::EncodeOptions;
use thermocline_tests::served::{CHAT, Served, chat};

#[test]
fn tokenize_and_detokenize_are_inverse_under_both_names() {
    let served = Served::new();
    let text = "Once upon a time, there was a bear.";
    let want = served.engine.tokenizer().encode(text, EncodeOptions::CHAT).unwrap();
    for field in ["prompt", "content"] {
        let tokens = served.client.post("/tokenize", &json!({ field: text, "add_special_tokens": true })).json(200);
        assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!(want), &json!(want.len())));
    }
    let plain = served.client.post("/tokenize", &json!({ "content": text })).json(200);
    let back = served.client.post("/detokenize", &json!({ "tokens": plain["tokens"] })).json(200);
    assert_eq!((back["prompt"].as_str().unwrap().trim(), &back["content"]), (text, &back["prompt"]));
    assert_eq!(served.client.post("/tokenize", &json!({})).error(400)["param"], "prompt");
    assert_eq!(served.client.post("/tokenize", &json!({ "prompt": "x", "y": 1 })).error(400)["param"], "y");
    assert_eq!(served.client.post("/detokenize", &json!({ "tokens": [999_999_999] })).error(400)["param"], "tokens");
}

#[test]
fn tokenizer_and_the_defaults_are_described() {
    let served = Served::new();
    let info = served.client.get("/tokenizer_info").json(200);
    let end = served.engine.tokenizer().eos().unwrap();
    assert_eq!(info["eos_token"].as_str().unwrap().as_bytes(), served.engine.tokenizer().token_bytes(end));
    let props = served.client.get("/props").json(200);
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(1), &json!("Storyteller")));
    assert_eq!(props["default_generation_settings"]["n_ctx"], served.engine.context());
}

#[test]
fn metrics_count_requests_and_tokens() {
    let served = Served::with(|options| options.key = Some("geheim".to_owned()));
    served.client.get("/metrics").error(401);
    let client = served.client.with("authorization", "Bearer geheim");
    client.post(CHAT, &chat("Hello!", json!({ "max_tokens": 3 }))).json(200);
    let reply = client.get("/metrics");
    assert!(reply.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for line in
        ["thermocline_tokens_predicted_total 3", "thermocline_requests_total 3", "thermocline_requests_deferred 0"]
    {
        assert!(reply.body.lines().any(|it| it == line), "{line} in {}", reply.body);
    }
    let described = reply.body.lines().filter(|line| line.starts_with("# TYPE")).count();
    assert_eq!(described, reply.body.lines().filter(|line| !line.starts_with('#')).count());
}
