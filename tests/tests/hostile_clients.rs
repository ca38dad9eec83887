//! A thousand hostile clients in a row, and requests mutated at random: the server goes on answering, nothing panics, and memory stays
//! flat. Alone in its program, since it measures memory. `THERMOCLINE_FUZZ_SECONDS=600` in the environment mutates for ten minutes.

#![allow(clippy::unwrap_used)]
// A runtime asks whether a thread may have an engine, and looks through all that wgpu is made of.
#![recursion_limit = "256"]

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use thermocline_tests::{
    dice::Dice,
    http::{Client, eventually},
    served::{CHAT, Served, TEXT, chat},
};

/// Growth that is taken for memory that is not given back.
const MOST_GROWTH: u64 = 48 << 20;

/// Bytes of RAM that this process holds, where the system tells.
fn resident() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    Some(pages * 4096)
}

#[track_caller]
fn assert_answers(served: &Served) {
    let began = Instant::now();
    let reply = served.client.post(CHAT, &chat("Hello!", json!({ "max_tokens": 2 }))).json(200);
    assert_eq!(reply["usage"]["completion_tokens"], 2);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// One hostile client.
fn attack(client: &Client, dice: &mut Dice) {
    let head = |length: usize| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    match dice.below(11) {
        // Half a head, half a body, and a client that is gone at once.
        0 => drop(client.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")),
        1 => drop(client.raw((head(100_000) + "{\"messages\":").as_bytes())),
        2 => drop(client.raw(b"")),
        // One that hangs up while it is answered.
        3 => {
            let mut stream = client.begin(CHAT, &chat("Hello!", json!({ "stream": true, "max_tokens": 50 })));
            stream.line_with("data:");
        }
        4 => assert!(client.send("POST", CHAT, &"[".repeat(50_000)).status == 400),
        5 => assert!(client.post(CHAT, &chat(&"word ".repeat(20_000), json!({}))).status == 400),
        6 => {
            let deep = "{\"a\":".repeat(120) + "1" + &"}".repeat(120);
            assert!(client.send("POST", CHAT, &format!("{{\"messages\": [], \"x\": {deep}}}")).status == 400);
        }
        7 => assert!(client.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01").rest().starts_with("HTTP/1.1 400")),
        8 => {
            let long = format!(
                "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: {}\r\n\r\n",
                "x".repeat(20_000)
            );
            assert!(client.raw(long.as_bytes()).rest().starts_with("HTTP/1.1 431"));
        }
        9 => {
            let twice = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
            let answer = client
                .raw(&[&twice[..], b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"].concat())
                .rest();
            assert!(answer.starts_with("HTTP/1.1 4") && !answer.contains("200 OK"), "{answer}");
        }
        _ => {
            client.post("/v1/embeddings", &json!({ "input": vec!["a"; 3000] })).error(400);
        }
    }
}

/// A client that asks for what takes long to find impossible.
fn ask_for_too_much(client: &Client) {
    let schema = json!({ "type": "regex", "pattern": "(((a{1,500}){1,500}){1,500}){1,500}" });
    let body = chat("Hello!", json!({ "response_format": schema, "max_tokens": 2 }));
    assert!(client.post(CHAT, &body).status < 500);
}

#[test]
fn thousand_hostile_clients_leave_memory_flat_and_the_server_answering() {
    let served = Served::with(|options| options.timeout = Duration::from_secs(2));
    let mut dice = Dice(7);
    let run = |count: usize, dice: &mut Dice| {
        for at in 0..count {
            attack(&served.client, dice);
            if at % 100 == 99 {
                ask_for_too_much(&served.client);
                assert_answers(&served);
            }
        }
    };
    run(300, &mut dice);
    let before = resident();
    run(1000, &mut dice);
    eventually("all have gone", || !served.server.status().answering && served.server.status().waiting == 0);
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(after < before + MOST_GROWTH, "{} MiB -> {} MiB", before >> 20, after >> 20);
    }
    assert_eq!(served.engine.stopped(), None);
    assert_answers(&served);
}

/// Requests that are answered.
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

/// A value that may be anywhere.
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

/// Replaces, removes or doubles something in a value.
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
    let seconds = std::env::var("THERMOCLINE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let (began, longest) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(8)));
    let (mut dice, mut sent, mut answered) = (Dice(11), 0, 0);
    let bodies = valid();
    for (path, body) in &bodies {
        assert_eq!(served.client.post(path, body).status, 200, "{path} {body}");
    }
    while began.elapsed() < longest {
        let (path, body) = &bodies[dice.below(bodies.len())];
        let mut body = body.clone();
        (0..1 + dice.below(3)).for_each(|_| mutate(&mut body, &mut dice));
        // Answers without a limit would take long.
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
        assert_eq!(served.engine.stopped(), None, "{path} {text}");
    }
    assert!(sent > 50 && answered > 0, "{sent} {answered}");
    println!("{sent} requests, {answered} answered");
    assert_answers(&served);
}
