//! A thousand hostile clients in a row. The server continues to answer, and its memory does not
//! grow.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::json;
use thermocline_tests::{
    dice::Dice,
    http::Client,
    served::{CHAT, Served, chat},
    wait::eventually,
};

use super::alone;

/// Growth in bytes above which the test assumes a leak.
const MOST_GROWTH: u64 = 48 << 20;

/// Returns the bytes of RAM of this process, if the system reports them.
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

/// Acts as one hostile client.
fn attack(client: &Client, dice: &mut Dice) {
    let head = |length: usize| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    match dice.below(11) {
        // These clients send half a head or half a body, or disconnect at once.
        0 => drop(client.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")),
        1 => drop(client.raw((head(100_000) + "{\"messages\":").as_bytes())),
        2 => drop(client.raw(b"")),
        // This client disconnects during the answer.
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

/// Requests a grammar that takes long to refuse.
fn ask_for_too_much(client: &Client) {
    let schema = json!({ "type": "regex", "pattern": "(((a{1,500}){1,500}){1,500}){1,500}" });
    let body = chat("Hello!", json!({ "response_format": schema, "max_tokens": 2 }));
    assert!(client.post(CHAT, &body).status < 500);
}

#[test]
fn thousand_hostile_clients_leave_memory_flat_and_the_server_answering() {
    let _alone = alone();
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
    assert!(served.engine.stopped().is_none());
    assert_answers(&served);
}
