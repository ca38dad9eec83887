//! Ollama's protocol over real connections, with the built-in model.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_tests::{
    http::Reply,
    served::{CHAT, Served, chat, text},
};

const API_CHAT: &str = "/api/chat";
const API_GENERATE: &str = "/api/generate";

/// Returns the objects of a streamed answer. Only the last has `done` set.
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, &reply.headers["content-type"]), (200, &"application/x-ndjson".parse().unwrap()));
    let lines: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done: Vec<bool> = lines.iter().map(|line| line["done"].as_bool().unwrap()).collect();
    assert!(done.iter().rev().skip(1).all(|done| !done) && done.last() == Some(&true), "{reply:?}");
    lines
}

fn question(more: Value) -> Value {
    let options = json!({ "num_predict": 24, "temperature": 0, "num_ctx": 2048 });
    let messages = json!([{ "role": "user", "content": "Tell me a story." }]);
    let mut body = json!({ "model": "llama3.2", "messages": messages, "options": options, "keep_alive": "5m" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn chat_and_generate_say_what_openais_paths_say_whole_and_in_lines() {
    let served = Served::new();
    let wanted = served.client.post(CHAT, &chat("Tell me a story.", json!({ "max_tokens": 24 }))).json(200);
    let wanted = &wanted["choices"][0]["message"]["content"];
    let whole = served.client.post(API_CHAT, &question(json!({ "stream": false }))).json(200);
    assert_eq!((&whole["message"]["content"], &whole["message"]["role"]), (wanted, &json!("assistant")));
    assert_eq!(
        (&whole["done"], &whole["done_reason"], &whole["eval_count"]),
        (&json!(true), &json!("length"), &json!(24))
    );
    assert!(
        whole["total_duration"].as_u64() >= whole["eval_duration"].as_u64()
            && whole["eval_duration"].as_u64() > Some(0)
    );
    assert!(whole["created_at"].as_str().unwrap().starts_with("20"), "{whole}");

    let streamed = lines(&served.client.post(API_CHAT, &question(json!({}))));
    let said: String = streamed.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert!(streamed.len() > 1 && said == wanted.as_str().unwrap(), "{said}");
    assert_eq!(streamed.last().unwrap()["prompt_eval_count"], whole["prompt_eval_count"]);

    let options = json!({ "num_predict": 24, "temperature": 0 });
    let asked = json!({ "prompt": "Tell me a story.", "options": options });
    let streamed = lines(&served.client.post(API_GENERATE, &asked));
    let said: String = streamed.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(said, wanted.as_str().unwrap());

    let raw = json!({ "prompt": "Once upon a time", "raw": true, "stream": false, "options": options });
    let raw = served.client.post(API_GENERATE, &raw).json(200);
    let wanted =
        served.client.post("/v1/completions", &text("Once upon a time", json!({ "max_tokens": 24 }))).json(200);
    assert_eq!(raw["response"], wanted["choices"][0]["text"]);
}

#[test]
fn format_is_followed() {
    let served = Served::new();
    let schema = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Ulm", "Rome"] } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let body = question(json!({ "format": schema, "stream": false }));
    let answer = served.client.post(API_CHAT, &body).json(200);
    let answer: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap();
    assert!(["Ulm", "Rome"].contains(&answer["city"].as_str().unwrap()), "{answer}");
}

#[test]
fn model_is_told_and_a_request_without_a_prompt_finds_it_loaded() {
    let served = Served::new();
    let tags = served.client.get("/api/tags").json(200);
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!("Storyteller"), &json!("Storyteller")));
    assert!(model["size"].as_u64() > Some(1 << 20) && model["digest"].as_str().unwrap().len() == 64, "{model}");
    assert_eq!(served.client.get("/api/ps").json(200)["models"][0]["name"], "Storyteller");
    let shown = served.client.post("/api/show", &json!({ "model": "Storyteller" })).json(200);
    let architecture = shown["model_info"]["general.architecture"].as_str().unwrap();
    assert!(shown["model_info"][format!("{architecture}.context_length")].as_u64() > Some(0), "{shown}");
    assert!(shown["model_info"]["general.parameter_count"].as_u64() > Some(1_000_000), "{shown}");
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("completion")));
    assert!(served.client.get("/api/version").json(200)["version"].is_string());
    for path in [API_CHAT, API_GENERATE] {
        let loaded = served.client.post(path, &json!({ "model": "Storyteller" })).json(200);
        assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")), "{path}");
    }
    served.offers(Err("no model is open".to_owned()));
    assert_eq!(served.client.get("/api/tags").json(200), json!({ "models": [] }));
}

#[test]
fn refusals_are_one_sentence() {
    let served = Served::with(|options| options.key = Some("secret".to_owned()));
    assert!(served.client.get("/api/tags").json(401)["error"].is_string());
    let client = served.client.with("authorization", "Bearer secret");
    for (path, body, says) in [
        (API_CHAT, question(json!({ "think": "hard" })), "think: expected"),
        (API_CHAT, question(json!({ "options": { "warp": 9 } })), "`options.warp` is not supported"),
        (API_CHAT, question(json!({ "messages": [{ "role": "robot", "content": "a" }] })), "messages[0].role"),
        (API_GENERATE, json!({ "prompt": "a", "images": ["b"] }), "picture: expected base64"),
        (API_GENERATE, json!({ "prompt": "a", "context": [1] }), "`context` is not supported"),
    ] {
        let error = client.post(path, &body).json(400)["error"].as_str().unwrap().to_owned();
        assert!(error.contains(says), "{error}");
    }
    assert!(client.send("POST", API_CHAT, "{").json(400)["error"].is_string());
    assert!(client.get(API_CHAT).json(405)["error"].is_string());
    let long = question(json!({ "messages": [{ "role": "user", "content": "word ".repeat(20_000) }] }));
    assert!(client.post(API_CHAT, &long).json(400)["error"].as_str().unwrap().contains("context holds"));
}
