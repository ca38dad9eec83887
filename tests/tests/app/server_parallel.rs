//! Several requests at a time. Each gets its own answer, they share passes, and the server counts
//! slots.
#![allow(clippy::unwrap_used)]

use std::thread;

use serde_json::json;
use thermocline_tests::{
    served::{CHAT, Served, chat, endless},
    wait::eventually,
};

fn parallel(n: usize) -> Served {
    Served::with(|options| options.parallel = n)
}

/// Returns a figure of `/metrics`.
fn figure(served: &Served, name: &str) -> f64 {
    let reply = served.client.get("/metrics");
    let line = reply.body.lines().find(|line| line.starts_with(&format!("thermocline_{name} "))).unwrap_or_default();
    line.split_whitespace().last().and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
}

#[test]
fn answers_in_parallel_are_those_of_one_at_a_time() {
    let names = ["cat", "dog", "frog", "bird", "bear", "fish"];
    let ask = |served: &Served, name: &str| {
        let body = chat(&format!("Tell me a story about a {name}."), json!({ "max_tokens": 30 }));
        served.client.post(CHAT, &body).json(200)["choices"][0]["message"]["content"].clone()
    };
    let one = parallel(1);
    let alone = names.map(|name| ask(&one, name));
    let several = parallel(4);
    thread::scope(|scope| {
        let all = names.map(|name| {
            let several = &several;
            scope.spawn(move || ask(several, name))
        });
        assert_eq!(all.map(|it| it.join().unwrap()), alone);
    });
    let passes = figure(&several, "decode_passes_total");
    let tokens = figure(&several, "tokens_predicted_total");
    assert!(passes < tokens, "{passes} passes for {tokens} tokens");
}

#[test]
fn busy_slots_and_batches_are_counted_and_the_next_request_waits() {
    let served = parallel(2).endless();
    let stream = || served.client.begin(CHAT, &endless(json!({ "stream": true })));
    let (mut first, mut second) = (stream(), stream());
    assert!(first.line_with("content\":\"").is_some() && second.line_with("content\":\"").is_some());
    assert_eq!((figure(&served, "slots"), figure(&served, "requests_processing")), (2.0, 2.0));
    eventually("a pass of two sequences", || figure(&served, "batch_size") == 2.0);
    let mut third = stream();
    eventually("one that waits", || served.server.status().waiting == 1);
    drop(first);
    assert!(third.line_with("content\":\"").is_some());
    assert!(second.line_with("content\":\"").is_some(), "the other goes on");
    assert_eq!(served.client.get("/v1/thermocline").json(200)["slots"], json!({ "total": 2, "busy": 2 }));
    assert_eq!(served.client.get("/props").json(200)["total_slots"], 2);
}

/// Two alternating chats keep their computed prefixes, each in its own slot.
#[test]
fn alternating_chats_keep_their_prefixes() {
    let served = parallel(2);
    let said = |text: &str, answer: &str, more: &str| {
        json!({
            "messages": [
                { "role": "user", "content": text },
                { "role": "assistant", "content": answer },
                { "role": "user", "content": more },
            ],
            "temperature": 0,
            "max_tokens": 4,
        })
    };
    let reused = || figure(&served, "prompt_tokens_reused_total");
    let texts =
        ["Tell me a story about a cat and a boat on the sea.", "Write about two dogs in the park with a red kite."];
    for text in texts {
        served.client.post(CHAT, &chat(text, json!({ "max_tokens": 4 }))).json(200);
    }
    for text in texts {
        let before = reused();
        served.client.post(CHAT, &said(text, "Once upon a time", "Go on.")).json(200);
        assert!(reused() >= before + 12.0, "{} {before}", reused());
    }
}
