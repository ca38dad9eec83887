//! Randomly mutated requests. The server answers or refuses each, and nothing panics. The
//! environment variable `THERMOCLINE_FUZZ_REQUESTS` sets the number of requests, for example
//! 100000.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_tests::{
    dice::Dice,
    served::{CHAT, Served, TEXT, chat},
};

/// Default number of requests.
const REQUESTS: usize = 400;

/// Returns valid requests with their paths.
fn valid() -> Vec<(&'static str, Value)> {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": schema } });
    let user = json!([{ "role": "user", "content": "Hi" }]);
    vec![
        (
            CHAT,
            json!({ "messages": user, "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["x"], "n": 1 }),
        ),
        (
            CHAT,
            json!({ "messages": user, "max_tokens": 1, "stream": true, "stream_options": { "include_usage": true }, "logprobs": true }),
        ),
        (CHAT, json!({ "messages": user, "max_tokens": 2, "tools": [tool], "tool_choice": "required" })),
        (
            CHAT,
            json!({ "messages": user, "max_tokens": 2, "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } }),
        ),
        (
            CHAT,
            json!({ "messages": user, "max_tokens": 2, "grammar": "root ::= [a-z]{1,5} (\"(\" root \")\")?", "reasoning": { "max_tokens": 3 } }),
        ),
        (
            TEXT,
            json!({ "prompt": ["Once", [1, 2]], "max_tokens": 1, "echo": true, "logprobs": 2, "logit_bias": { "5": -1 } }),
        ),
        (
            "/v1/responses",
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] }], "max_output_tokens": 1, "stream": true }),
        ),
        ("/v1/embeddings", json!({ "input": ["Hi", "there"], "dimensions": 3, "encoding_format": "base64" })),
        (
            "/v1/messages",
            json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Hi" }] }], "thinking": { "type": "enabled", "budget_tokens": 5 } }),
        ),
        (
            "/api/chat",
            json!({ "messages": user, "stream": true, "format": schema, "options": { "num_predict": 1, "stop": ["a"] } }),
        ),
        ("/api/generate", json!({ "prompt": "Hi", "raw": true, "stream": false, "options": { "num_predict": 1 } })),
        ("/api/embed", json!({ "input": "Hi", "truncate": true })),
        ("/tokenize", json!({ "content": "Hi", "add_special": true })),
        ("/detokenize", json!({ "tokens": [1, 2, 3] })),
    ]
}

/// Returns a random JSON value.
fn any_value(dice: &mut Dice) -> Value {
    match dice.below(14) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(1e300),
        5 => json!(u64::MAX),
        6 => json!(""),
        7 => json!("\u{0}\u{fffd}é"),
        8 => json!([]),
        9 => json!({}),
        10 => json!([[[[]]]]),
        11 => json!(["a", 1, null]),
        12 => json!("root ::= (((("),
        _ => json!({ "type": "object", "a": { "$ref": "#" } }),
    }
}

/// Replaces, removes or doubles a part of a value.
fn mutate(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(map) if !map.is_empty() && dice.below(4) > 0 => {
            let key = map.keys().nth(dice.below(map.len())).unwrap().clone();
            match dice.below(6) {
                0 => drop(map.remove(&key)),
                1 => {
                    let other = any_value(dice);
                    map.insert(key.to_uppercase(), other);
                }
                _ => mutate(&mut map[&key], dice),
            }
        }
        Value::Array(list) if !list.is_empty() && dice.below(4) > 0 => {
            let at = dice.below(list.len());
            match dice.below(5) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                _ => mutate(&mut list[at], dice),
            }
        }
        other => *other = any_value(dice),
    }
}

#[test]
fn mutated_requests_are_answered_or_refused_and_nothing_panics() {
    let served = Served::new();
    let requests = std::env::var("THERMOCLINE_FUZZ_REQUESTS").ok().and_then(|text| text.parse().ok());
    let requests = requests.unwrap_or(REQUESTS);
    let (mut dice, mut sent, mut answered) = (Dice(11), 0, 0);
    let bodies = valid();
    for (path, body) in &bodies {
        assert_eq!(served.client.post(path, body).status, 200, "{path} {body}");
    }
    while sent < requests {
        let (path, body) = &bodies[dice.below(bodies.len())];
        let mut body = body.clone();
        (0..1 + dice.below(3)).for_each(|_| mutate(&mut body, &mut dice));
        // Answers without a limit would take too long.
        if let Value::Object(map) = &mut body {
            let limits = ["max_tokens", "max_output_tokens"].into_iter().filter(|field| map.contains_key(*field));
            let limit: Vec<&str> = limits.collect();
            limit.into_iter().for_each(|field| drop(map.insert(field.to_owned(), json!(2))));
        }
        let mut text = body.to_string();
        if dice.below(8) == 0 {
            let mut bytes = text.into_bytes();
            (0..1 + dice.below(4)).for_each(|_| {
                let at = dice.below(bytes.len());
                bytes[at] = dice.below(128) as u8;
            });
            text = String::from_utf8_lossy(&bytes).into_owned();
        }
        let reply = served.client.send("POST", path, &text);
        sent += 1;
        answered += usize::from(reply.status == 200);
        let fine = matches!(reply.status, 200 | 400 | 404 | 413 | 415);
        assert!(fine && !reply.body.contains("panicked"), "{path} {text}: {reply:?}");
        assert!(served.engine.stopped().is_none(), "{path} {text}");
    }
    println!("{sent} requests, {answered} answered");
    assert!(answered > 0 && answered < sent, "{answered} of {sent}");
    let reply = served.client.post(CHAT, &chat("Hello!", json!({ "max_tokens": 2 }))).json(200);
    assert_eq!(reply["usage"]["completion_tokens"], 2);
}
