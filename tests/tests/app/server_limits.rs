//! The server's limits: refused requests, the queue, disconnections, and shutdown.

#![allow(clippy::unwrap_used)]

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use thermocline_server::{ServedModels, Server, ServerOptions};
use thermocline_tests::{
    http::Client,
    served::{CHAT, Served, TEXT, chat, endless, offer, text},
    wait::eventually,
};

fn small() -> Value {
    chat("Hello!", json!({ "max_tokens": 3 }))
}

#[test]
fn invalid_requests_are_refused_with_the_field_and_the_server_goes_on() {
    let served = Served::new();
    let client = &served.client;
    for body in
        ["{", "", "nonsense", "[1, 2]", "{\"messages\": 7}", "{\"messages\": []}", "\u{0}\u{1}", "{\"a\":\"\\ud800\"}"]
    {
        assert_eq!(client.send("POST", CHAT, body).error(400)["type"], "invalid_request_error", "{body}");
    }
    let error = client.post(CHAT, &chat("Hi", json!({ "temperature": "hot" }))).error(400);
    assert_eq!(error["message"], "temperature: expected a number, got \"hot\"");
    assert_eq!(error["param"], "temperature");
    let other = client.post(CHAT, &chat("Hi", json!({ "model": "gpt-4o", "max_tokens": 1 }))).json(200);
    assert_eq!(other["model"], "Storyteller", "the reply says which model answers");
    let strict = Served::with(|options| options.strict = true);
    let error = strict.client.post(CHAT, &chat("Hi", json!({ "model": "gpt-4o" }))).error(404);
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(client.post(TEXT, &json!({ "prompt": [999_999_999] })).error(400)["param"], "prompt");
    client.get("/v1/audio/speech").error(404);
    for (method, path, allowed) in [
        ("GET", CHAT, "POST"),
        ("PUT", TEXT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/health", "GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
    ] {
        let reply = client.send_empty(method, path);
        reply.error(405);
        assert_eq!(reply.headers["allow"], allowed);
    }
    assert_eq!(client.post(CHAT, &small()).json(200)["usage"]["completion_tokens"], 3);
}

#[test]
fn root_says_without_a_key_that_a_server_is_there() {
    let served = Served::with(|options| options.key = Some("geheim".to_owned()));
    served.client.get("/v1/models").error(401);
    let reply = served.client.get("/");
    assert_eq!((reply.status, &*reply.body), (200, "Thermocline is running\n"));
    let reply = served.client.send_empty("HEAD", "/");
    assert_eq!((reply.status, &*reply.body), (200, ""));
    served.client.with("origin", "http://evil.example").get("/").error(403);
}

#[test]
fn numbers_below_zero_and_empty_stops_set_no_limit_in_any_protocol() {
    let served = Served::new();
    let mut limited = offer("Storyteller", &served.engine);
    (limited.defaults.max_tokens, limited.defaults.stop) = (Some(2), vec![" a".to_owned()]);
    served.offers(Ok(limited));
    let user = json!([{ "role": "user", "content": "Tell me a story." }]);
    let free = json!({ "top_k": -1, "repeat_last_n": -1, "repeat_penalty": 1.0, "stop": [""], "temperature": 0 });
    let body = |more: Value| {
        let mut body = free.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = |answer: &Value, reason: &Value, end: &str| {
        let count = answer["usage"]["completion_tokens"].as_u64().or(answer["usage"]["output_tokens"].as_u64());
        let count = count.or(answer["eval_count"].as_u64()).unwrap();
        assert!(count > 30 && reason == end, "{answer}");
    };
    for number in [-1, -2] {
        let answer = served.client.post(CHAT, &body(json!({ "messages": user, "max_tokens": number }))).json(200);
        whole(&answer, &answer["choices"][0]["finish_reason"], "stop");
        let more = json!({ "messages": user, "max_completion_tokens": number, "stop": "" });
        let answer = served.client.post(CHAT, &body(more)).json(200);
        whole(&answer, &answer["choices"][0]["finish_reason"], "stop");
        let answer = served.client.post(TEXT, &body(json!({ "prompt": "One day", "max_tokens": number }))).json(200);
        whole(&answer, &answer["choices"][0]["finish_reason"], "stop");
        let more = json!({ "messages": user, "max_tokens": number, "top_k": number, "stop_sequences": [""], "temperature": 0 });
        let answer = served.client.post("/v1/messages", &more).json(200);
        whole(&answer, &answer["stop_reason"], "end_turn");
        // The responses protocol has no stop strings.
        let input = json!({ "input": "Tell me a story.", "max_output_tokens": number, "temperature": 0 });
        let answer = served.client.post("/v1/responses", &input).json(200);
        assert_eq!((&answer["status"], &answer["max_output_tokens"]), (&json!("completed"), &Value::Null), "{answer}");
        let options = body(json!({ "num_predict": number }));
        let answer = served
            .client
            .post("/api/chat", &json!({ "messages": user, "stream": false, "options": options }))
            .json(200);
        whole(&answer, &answer["done_reason"], "stop");
    }
    let strict = Served::with(|options| options.strict = true);
    for (field, value) in [("max_tokens", json!(-1)), ("stop", json!("")), ("stop", json!([""]))] {
        let error = strict.client.post(CHAT, &chat("Hi", json!({ field: value }))).error(400);
        assert_eq!(error["param"], field, "{error}");
    }
    for (field, value) in [("max_tokens", json!(-1.5)), ("top_k", json!("-1")), ("n", json!(-1)), ("stop", json!([7]))]
    {
        let error = served.client.post(CHAT, &chat("Hi", json!({ field: value }))).error(400);
        assert_eq!(error["param"], field, "{error}");
    }
}

/// The server converts requests of other protocols to OpenAI's and adds fields. A strict server
/// must not refuse fields that the client did not send.
#[test]
fn strict_server_answers_requests_of_every_protocol() {
    let served = Served::with(|options| options.strict = true);
    let with = |body: &Value, more: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let messages = json!([{ "role": "user", "content": "Hello!" }]);
    let message = json!({ "messages": messages, "max_tokens": 3 });
    let ollama = json!({ "options": { "num_predict": 3 } });
    let (talk, text) = (with(&ollama, json!({ "messages": messages })), with(&ollama, json!({ "prompt": "Hello!" })));
    for (path, body) in [
        (CHAT, message.clone()),
        (TEXT, json!({ "prompt": "Hello!", "max_tokens": 3 })),
        ("/v1/responses", json!({ "input": "Hello!", "max_output_tokens": 3 })),
        ("/v1/responses", json!({ "input": "Hello!", "max_output_tokens": 3, "reasoning": { "effort": "low" } })),
        ("/v1/embeddings", json!({ "input": "Hello!" })),
        ("/v1/messages", message.clone()),
        ("/v1/messages", with(&message, json!({ "thinking": { "type": "enabled", "budget_tokens": 2 } }))),
        ("/v1/messages", with(&message, json!({ "thinking": { "type": "adaptive" } }))),
        ("/v1/messages", with(&message, json!({ "thinking": { "type": "disabled" }, "top_k": 5 }))),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
        ("/api/chat", talk.clone()),
        ("/api/chat", with(&talk, json!({ "think": true }))),
        ("/api/chat", with(&talk, json!({ "think": false, "keep_alive": "5m" }))),
        ("/api/chat", with(&talk, json!({ "think": "low", "format": "json" }))),
        ("/api/generate", text.clone()),
        ("/api/generate", with(&text, json!({ "think": true, "system": "Be brief." }))),
        ("/api/generate", with(&text, json!({ "raw": true }))),
        ("/api/embed", json!({ "input": "Hello!" })),
        ("/api/embeddings", json!({ "prompt": "Hello!" })),
    ] {
        let reply = served.client.post(path, &body);
        assert!(reply.status == 200 && !reply.body.contains("\"error\":\""), "{path} {body}: {reply:?}");
    }
    for (path, body) in [
        (CHAT, with(&message, json!({ "reasoning_effort": "low" }))),
        ("/v1/responses", json!({ "input": "Hello!", "warp": 1 })),
        ("/v1/messages", with(&message, json!({ "chat_template_kwargs": {} }))),
        ("/api/chat", with(&talk, json!({ "warp": 1 }))),
    ] {
        assert_eq!(served.client.post(path, &body).status, 400, "{path} {body}");
    }
}

#[test]
fn prompt_longer_than_the_context_is_refused_with_both_lengths() {
    let served = Served::new();
    for (path, body) in [(CHAT, chat(&"word ".repeat(3000), json!({}))), (TEXT, text(&"word ".repeat(3000), json!({})))]
    {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = json!(stream);
            let error = served.client.post(path, &body).error(400);
            assert_eq!(error["code"], "context_length_exceeded");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("has 600") && message.contains("holds 512"), "{message}");
        }
    }
    // This prompt fits but leaves less room than `max_tokens`. The answer ends early and reports
    // the reason.
    let prompt = "word ".repeat(250);
    let answer =
        served.client.post(TEXT, &text(&prompt, json!({ "max_tokens": 5000, "logit_bias": { "1": -1e6 } }))).json(200);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["total_tokens"], 513, "the last token needs no room");
}

#[test]
fn every_route_but_health_requires_the_key() {
    let served = Served::with(|options| options.key = Some("geheim".to_owned()));
    let (keyless, wrong) = (&served.client, served.client.with("authorization", "Bearer falsch"));
    for client in [keyless, &wrong] {
        for reply in
            [client.post(CHAT, &small()), client.get("/v1/models"), client.get("/v1/thermocline"), client.get("/x")]
        {
            assert_eq!(reply.error(401)["code"], "invalid_api_key");
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
        }
        client.get("/health").json(200);
    }
    let client = served.client.with("authorization", "Bearer geheim");
    client.get("/v1/models").json(200);
    client.post(CHAT, &small()).json(200);
}

#[test]
fn foreign_origins_and_host_names_are_refused() {
    let served = Served::with(|options| options.origins.push("http://localhost:3000".to_owned()));
    let evil = served.client.with("origin", "http://evil.example");
    for reply in [evil.post(CHAT, &small()), evil.get("/v1/models"), evil.get("/health")] {
        assert!(reply.error(403)["message"].as_str().unwrap().contains("--allow-origin http://evil.example"));
        assert!(!reply.headers.contains_key("access-control-allow-origin"));
    }
    let preflight = |client: &Client| {
        let client = client
            .with("access-control-request-method", "POST")
            .with("access-control-request-headers", "x-stainless-os");
        client.send_empty("OPTIONS", CHAT)
    };
    preflight(&evil).error(403);
    let rebound = served.client.with("host", "evil.example:8080");
    rebound.post(CHAT, &small()).error(403);
    served.client.with("host", "localhost").post(CHAT, &small()).json(200);

    let page = served.client.with("origin", "http://localhost:3000");
    let reply = preflight(&page);
    assert_eq!((reply.status, &*reply.body), (200, ""));
    assert_eq!(reply.headers["access-control-allow-headers"], "x-stainless-os");
    for reply in [reply, page.post(CHAT, &small()), page.post(CHAT, &json!({}))] {
        assert_eq!(reply.headers["access-control-allow-origin"], "http://localhost:3000");
        assert_eq!(reply.headers["vary"], "origin");
    }
    // The server answers OPTIONS only for preflights.
    served.client.send_empty("OPTIONS", CHAT).error(405);
    assert_eq!(served.engine.telemetry().generated_tokens, 6, "what was refused was not computed");
}

#[test]
fn malformed_requests_do_not_affect_others() {
    let served = Served::new();
    let client = &served.client;
    for bytes in [
        &b"GARBAGE\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ] {
        let answer = client.raw(bytes).rest();
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let head = [&b"GET /health HTTP/1.1\r\nX: "[..], &vec![b'x'; 1 << 20], b"\r\n\r\n"].concat();
    assert!(client.raw(&head).rest().starts_with("HTTP/1.1 431"));
    client.post(CHAT, &small()).json(200);
}

/// On a busy machine a complete request may arrive too late, but not every time.
#[test]
fn slow_requests_end_and_do_not_affect_others() {
    let served = Served::with(|options| options.timeout = Duration::from_millis(300));
    let client = &served.client;
    // The first client sends half a head, the second sends nothing.
    client.raw(b"GET /health HT").rest();
    client.raw(b"").rest();
    let half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    eventually("the end of half a body", || {
        let half = client.raw(half).rest();
        assert!(half.is_empty() || half.starts_with("HTTP/1.1 408"), "{half}");
        !half.is_empty()
    });
    eventually("an answer", || client.begin(CHAT, &small()).rest().starts_with("HTTP/1.1 200"));
}

#[test]
fn body_over_the_limit_is_refused() {
    let served = Served::new();
    let error = served.client.send("POST", CHAT, &"x".repeat(33 << 20)).error(413);
    assert!(error["message"].as_str().unwrap().contains("32.0 MiB"), "{error}");
    let huge = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n";
    let answer = served.client.raw(huge).rest();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let fits = "x".repeat(1 << 20);
    assert_eq!(served.client.post(TEXT, &text(&fits, json!({}))).error(400)["code"], "context_length_exceeded");
}

#[test]
fn disconnection_cancels_the_generation() {
    let served = Served::new().endless();
    let idle = || served.engine.telemetry().generations == 0 && !served.server.status().answering;
    for stream in [true, false] {
        let before = served.engine.telemetry().generated_tokens;
        let mut caller = served.client.begin(CHAT, &endless(json!({ "stream": stream })));
        if stream {
            assert!(caller.line_with("content\":\"").is_some());
        }
        eventually("a few tokens", || served.engine.telemetry().generated_tokens > before + 5);
        assert!(!idle());
        drop(caller);
        eventually("the end", idle);
    }
    served.client.post(CHAT, &small()).json(200);
}

#[test]
fn two_hundred_requests_wait_and_all_are_answered() {
    let served = Served::new().endless();
    let slots = served.server.status().slots;
    let busy: Vec<_> = (0..slots).map(|_| served.client.begin(CHAT, &endless(json!({})))).collect();
    eventually("every slot is in use", || served.server.status().busy == slots);
    let mut all: Vec<_> = (0..200).map(|_| served.client.begin(CHAT, &small())).collect();
    eventually("all wait", || served.server.status().waiting == all.len());
    drop(busy);
    for (at, one) in all.iter_mut().enumerate() {
        let reply = one.rest();
        assert!(
            reply.starts_with("HTTP/1.1 200 ") && reply.contains("\"completion_tokens\":3"),
            "request {at}: {reply}"
        );
    }
    assert_eq!(served.server.status().waiting, 0);
}

#[test]
fn requests_wait_in_order_up_to_the_queue_limit() {
    let served = Served::with(|options| options.max_waiting = 2).endless();
    let waiting = |count| move |served: &Served| served.server.status().waiting == count;
    let first = served.client.begin(CHAT, &endless(json!({})));
    eventually("the first one's turn", || served.server.status().answering);
    let second = served.client.begin(CHAT, &endless(json!({ "max_tokens": 7 })));
    eventually("one that waits", || waiting(1)(&served));
    let mut third = served.client.begin(CHAT, &endless(json!({ "max_tokens": 9, "stream": true })));
    eventually("two that wait", || waiting(2)(&served));
    let refused = served.client.post(CHAT, &small());
    assert_eq!(refused.error(429)["code"], "rate_limit_exceeded");
    assert!(refused.headers.contains_key("retry-after"));
    // Other routes do not wait in the queue.
    served.client.get("/v1/models").json(200);
    // A client that disconnects leaves the queue.
    drop(second);
    eventually("one that waits", || waiting(1)(&served));
    let mut fourth = served.client.begin(CHAT, &endless(json!({ "max_tokens": 11 })));
    eventually("two that wait", || waiting(2)(&served));
    let before = served.engine.telemetry().generated_tokens;
    drop(first);
    assert!(third.line_with("[DONE]").is_some());
    assert!(fourth.line_with("\"completion_tokens\":11").is_some());
    assert!(served.engine.telemetry().generated_tokens >= before + 20);
    assert!(waiting(0)(&served));
}

#[test]
fn concurrent_requests_get_their_own_answers() {
    let served = Served::new();
    let names = ["cat", "dog", "frog", "bird", "bear", "fish"];
    let ask = |name: &str| {
        let body = chat(&format!("Tell me a story about a {name}."), json!({ "max_tokens": 30 }));
        served.client.post(CHAT, &body).json(200)["choices"][0]["message"]["content"].clone()
    };
    let alone = names.map(ask);
    thread::scope(|scope| {
        let all = names.map(|name| scope.spawn(move || ask(name)));
        assert_eq!(all.map(|it| it.join().unwrap()), alone);
    });
}

#[test]
fn shut_down_completes_the_answer_and_drop_cancels_it() {
    let served = Served::new().endless();
    let mut last = served.client.begin(CHAT, &endless(json!({ "max_tokens": 1500, "stream": true })));
    assert!(last.line_with("content\":\"").is_some());
    let mut waits = served.client.begin(CHAT, &endless(json!({})));
    eventually("one that waits", || served.server.status().waiting == 1);
    served.server.shut_down();
    assert!(waits.line_with("HTTP/1.1").unwrap().contains("503"));
    assert!(last.line_with("\"finish_reason\":\"length\"").is_some());
    assert!(last.line_with("[DONE]").is_some());
    eventually("the end", || served.server.is_finished());
    assert!(TcpStream::connect(served.client.address).is_err());

    let served = Served::new().endless();
    let mut stopped = served.client.begin(CHAT, &endless(json!({ "stream": true })));
    assert!(stopped.line_with("content\":\"").is_some());
    let engine = served.engine.clone();
    drop(served);
    assert!(!stopped.rest().contains("[DONE]"));
    eventually("an idle engine", || engine.telemetry().generations == 0 && engine.telemetry().sessions == 0);
}

#[test]
fn releasing_the_model_ends_its_answer_with_an_error() {
    let served = Served::new().endless();
    let mut caller = served.client.begin(CHAT, &endless(json!({ "stream": true })));
    assert!(caller.line_with("content\":\"").is_some());
    served.server.release_model_unless(Some(&served.engine));
    assert!(caller.line_with("content\":\"").is_some(), "its own model stays");
    served.server.release_model_unless(None);
    let end = caller.line_with("\"error\"").unwrap();
    assert!(end.contains("the model is being closed"), "{end}");
    eventually("no session", || served.engine.telemetry().sessions == 0);
    served.client.post(CHAT, &small()).json(200);
}

#[test]
fn bind_errors_are_sentences() {
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = other.local_addr().unwrap();
    let start = |address| {
        let source = Arc::new(|| Err("no model is open".to_owned()));
        Server::start(ServerOptions::at(address), ServedModels::Open(source), |_| ()).map(|_| ())
    };
    let why = start(address).unwrap_err();
    assert!(why.contains(&format!("port {} is taken", address.port())), "{why}");
    drop(other);
    start(address).unwrap();
    let why = start(([192, 0, 2, 1], 0).into()).unwrap_err();
    assert!(why.contains("192.0.2.1 is not an address of this computer"), "{why}");
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let served = Served::with(|options| options.timeout = Duration::from_secs(1));
    // The list is larger than the buffers of a system for a client that does not read.
    let name = "x".repeat(32 << 20);
    served.offers(Ok(offer(&name, &served.engine)));
    let mut deaf = served.client.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    // The server begins to send the list here.
    assert!(deaf.line_with("200 OK").is_some());
    eventually("the end of the connection", || deaf.is_closed());
    let taken = deaf.rest();
    assert!(taken.len() < name.len(), "{} bytes", taken.len());
    // A client that reads receives the whole list, unless the machine is too busy to read in time.
    eventually("the whole list", || {
        let request = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        served.client.raw(request).rest().len() > name.len()
    });
}

#[test]
fn every_response_forbids_sniffing_and_storing() {
    let served = Served::new();
    let evil = served.client.with("origin", "http://evil.example");
    for reply in [
        served.client.get("/health"),
        served.client.get("/nowhere"),
        served.client.post(CHAT, &small()),
        evil.get("/health"),
    ] {
        assert_eq!(
            (&reply.headers["x-content-type-options"], &reply.headers["cache-control"]),
            (&"nosniff".parse().unwrap(), &"no-store".parse().unwrap())
        );
    }
}

#[test]
fn requests_that_pages_could_forge_are_refused_without_work() {
    let served = Served::new();
    let head = |line: &str, headers: &str| {
        let body = small().to_string();
        let request =
            format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let reply = served.client.raw(request.as_bytes()).rest();
        reply.get(9..12).unwrap_or_default().to_owned()
    };
    let json = "Content-Type: application/json\r\n";
    let post = "POST /v1/chat/completions";
    for (line, headers, status) in [
        (post, json.to_owned(), "400"),
        (post, format!("Host: localhost:abc\r\n{json}"), "403"),
        (post, format!("Host: [::1]evil.example\r\n{json}"), "403"),
        (post, format!("Host: localhost\r\nHost: localhost\r\n{json}"), "403"),
        ("POST http://evil.example/v1/chat/completions", format!("Host: localhost\r\n{json}"), "403"),
        (post, "Host: localhost\r\nContent-Type: text/plain\r\n".to_owned(), "415"),
        (post, "Host: localhost\r\n".to_owned(), "415"),
        (post, format!("Host: localhost\r\nContent-Encoding: gzip\r\n{json}"), "415"),
        (post, format!("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n{json}"), "403"),
        (post, format!("Host: localhost\r\nX: {}\r\n{json}", "x".repeat(20_000)), "431"),
        (post, format!("Host: localhost\r\nX: {}\r\n{json}", "x".repeat(70_000)), "431"),
        (post, format!("Host: localhost\r\n{}{json}", "X: y\r\n".repeat(120)), "431"),
    ] {
        assert_eq!(head(line, &headers), status, "{line} {}", &headers[..headers.len().min(80)]);
    }
    assert_eq!(served.engine.telemetry().generated_tokens, 0);
    assert_eq!(head(post, &format!("Host: localhost\r\n{json}")), "200");
}

#[test]
fn half_sent_heads_and_idle_connections_do_not_keep_others_out() {
    let served = Served::with(|options| {
        options.max_connections = 8;
        // The timeout does not end any connection during the test.
        options.timeout = Duration::from_secs(3600);
    })
    .endless();
    let mut busy = served.client.begin(CHAT, &endless(json!({ "stream": true })));
    assert!(busy.line_with("content\":\"").is_some());
    let half: Vec<_> = (0..30).map(|_| served.client.raw(b"GET /health HTTP/1.1\r\nHost: local")).collect();
    let idle: Vec<_> = (0..30).map(|_| served.client.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")).collect();
    served.client.get("/health").json(200);
    assert!(busy.line_with("content\":\"").is_some(), "an answer is not interrupted");
    drop((half, idle));
}

#[test]
fn stream_that_waits_has_its_headers_and_comments() {
    let served = Served::new().endless();
    let mut first = served.client.begin(CHAT, &endless(json!({ "stream": true })));
    assert!(first.line_with("content\":\"").is_some());
    let mut second = served.client.begin(CHAT, &chat("Hi", json!({ "stream": true, "max_tokens": 2 })));
    assert!(second.line_with("HTTP/1.1 200").is_some());
    assert!(second.line_with(": waiting").is_some());
    drop(first);
    assert!(second.line_with("content\":\"").is_some() && second.line_with("[DONE]").is_some());
}

#[test]
fn server_for_the_network_without_a_key_does_not_start() {
    let source = || Arc::new(|| Err("no model is open".to_owned()));
    let address = (Ipv4Addr::UNSPECIFIED, 0).into();
    let why = Server::start(ServerOptions::at(address), ServedModels::Open(source()), |_| ()).unwrap_err();
    assert!(why.contains("needs a key"), "{why}");
    let options = ServerOptions { key: Some("geheim".to_owned()), ..ServerOptions::at(address) };
    Server::start(options, ServedModels::Open(source()), |_| ()).unwrap();
}
