//! The server's answers over real connections, whole and streamed.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_engine::session::{Event, Prompt, Request, Sampling, SessionOptions};
use thermocline_tests::{
    http::{Client, Reply},
    served::{CHAT, Served, TEXT, chat, offer, reference_answer, storyteller, text},
};

const QUESTION: &str = "Tell me a story about a cat and a dog.";

fn said(reply: &Value) -> String {
    let choice = &reply["choices"][0];
    choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_owned()
}

/// Returns the text of a stream, the reason of its end, and its figures.
fn joined(reply: &Reply) -> (String, Value, Value) {
    let (mut text, mut reason, mut usage) = (String::new(), Value::Null, Value::Null);
    for event in reply.events() {
        let choice = &event["choices"][0];
        assert!(reason.is_null() || choice.is_null(), "text after the end: {event}");
        text += choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        reason = if choice["finish_reason"].is_null() { reason } else { choice["finish_reason"].clone() };
        usage = if event["usage"].is_null() { usage } else { event["usage"].clone() };
    }
    (text, reason, usage)
}

#[test]
fn chat_is_answered_whole_and_as_a_stream() {
    let served = Served::new();
    let whole = served.client.post(CHAT, &chat(QUESTION, json!({ "model": "Storyteller" }))).json(200);
    let story = said(&whole);
    assert!(story.starts_with(&reference_answer(0)), "{story}");
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("Storyteller")));
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole["choices"][0]["message"]["role"], "assistant");
    let (usage, count) = (&whole["usage"], |name: &str| whole["usage"][name].as_u64().unwrap());
    assert_eq!(count("prompt_tokens") + count("completion_tokens"), count("total_tokens"), "{usage}");
    let tokenizer = served.engine.tokenizer();
    let encoded = tokenizer.encode(&story, thermocline_engine::tokenizer::EncodeOptions::PLAIN).unwrap();
    assert_eq!(count("completion_tokens"), encoded.len() as u64);

    let more = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let stream = served.client.post(CHAT, &chat(QUESTION, more));
    assert!(stream.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let events = stream.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"]));
    assert!(events.len() > 5 && events[..events.len() - 1].iter().all(|event| event["usage"].is_null()));
    let (text, reason, usage) = joined(&stream);
    assert_eq!((text, reason), (story, json!("stop")));
    assert_eq!(usage["total_tokens"], whole["usage"]["total_tokens"]);
    // The cache had all tokens of the prompt but the last.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], count("prompt_tokens") - 1);
}

#[test]
fn roles_and_content_parts_reach_the_template() {
    let served = Served::new();
    let plain = json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": QUESTION }]);
    let parts = json!([
        { "role": "developer", "content": [{ "type": "text", "text": "Be " }, { "type": "text", "text": "kind." }] },
        { "role": "user", "content": [{ "type": "text", "text": QUESTION }] },
    ]);
    let ask = |messages: Value| {
        served.client.post(CHAT, &json!({ "messages": messages, "temperature": 0, "max_tokens": 9 })).json(200)
    };
    let (plain, parts) = (ask(plain), ask(parts));
    assert_eq!(said(&plain), said(&parts));
    assert_eq!(plain["usage"]["prompt_tokens"], parts["usage"]["prompt_tokens"]);
    let alone = ask(json!([{ "role": "user", "content": QUESTION }]));
    assert!(alone["usage"]["prompt_tokens"].as_u64() < plain["usage"]["prompt_tokens"].as_u64());
    let turns = json!([
        { "role": "user", "content": "Hello." }, { "role": "assistant", "content": "Hi." },
        { "role": "user", "content": QUESTION },
    ]);
    assert!(ask(turns)["usage"]["prompt_tokens"].as_u64() > alone["usage"]["prompt_tokens"].as_u64());
}

#[test]
fn completion_continues_the_prompt() {
    let served = Served::new();
    let ask = |body: Value| served.client.post(TEXT, &body);
    let whole = ask(text("Once upon a time", json!({ "max_tokens": 10 }))).json(200);
    assert_eq!(
        (&whole["object"], &whole["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("length"))
    );
    // The reference is the answer of the engine itself.
    let session = served.engine.session(SessionOptions::default()).unwrap();
    let prompt = Prompt::Text("Once upon a time".to_owned());
    let request = Request { sampling: Sampling::greedy(), max_tokens: Some(10), ..Request::new(prompt) };
    let piece = |event| if let Event::Token { text, .. } = event { text.to_string() } else { String::new() };
    let own: String = session.generate(request).into_iter().map(piece).collect();
    assert!(own.len() > 20, "{own}");
    assert_eq!(said(&whole), own);
    assert_eq!(whole["usage"]["completion_tokens"], 10);
    let (joined, reason, _) = joined(&ask(text("Once upon a time", json!({ "max_tokens": 10, "stream": true }))));
    assert_eq!((joined, reason), (said(&whole), json!("length")));
    let encode = thermocline_engine::tokenizer::EncodeOptions::CHAT;
    let tokens = served.engine.tokenizer().encode("Once upon a time", encode).unwrap();
    let by_ids = ask(json!({ "prompt": tokens, "temperature": 0, "max_tokens": 10 })).json(200);
    assert_eq!(said(&by_ids), said(&whole));
    let none = ask(text("Once upon a time", json!({ "max_tokens": 0 }))).json(200);
    assert_eq!((said(&none), &none["usage"]["completion_tokens"]), (String::new(), &json!(0)));
}

#[test]
fn stop_strings_match_across_token_boundaries() {
    let served = Served::new();
    let whole = said(&served.client.post(TEXT, &text("Once upon a time", json!({ "max_tokens": 40 }))).json(200));
    // Stop strings have various lengths and places, so that some begin and end inside tokens.
    for (from, to) in [(3, 4), (5, 12), (2, 30), (10, 17), (20, 21), (9, 40)] {
        let stop = &whole[from..to];
        let before = &whole[..whole.find(stop).unwrap()];
        for more in [json!(stop), json!(["nowhere", stop]), json!(["a", "b", "c", stop])] {
            let asked = more.as_array().map_or(vec![stop], |list| list.iter().filter_map(Value::as_str).collect());
            let first =
                asked.iter().filter_map(|stop| whole.find(stop).map(|at| (at + stop.len(), at))).min().unwrap().1;
            let want = if asked.len() < 3 { before } else { &whole[..first] };
            let body = text("Once upon a time", json!({ "max_tokens": 40, "stop": more }));
            let answer = served.client.post(TEXT, &body).json(200);
            assert_eq!((&*said(&answer), &answer["choices"][0]["finish_reason"]), (want, &json!("stop")), "{stop:?}");
            let mut body = body;
            body["stream"] = json!(true);
            let (text, reason, _) = joined(&served.client.post(TEXT, &body));
            assert_eq!((&*text, reason), (want, json!("stop")), "{stop:?}");
        }
    }
}

#[test]
fn streamed_characters_are_never_split() {
    let served = Served::new();
    // Each of the two bytes of é is a token. Biases and the frequency penalty make the two tokens
    // alternate.
    let tokenizer = served.engine.tokenizer();
    let ids = tokenizer.encode("é", thermocline_engine::tokenizer::EncodeOptions::PLAIN).unwrap();
    let [first, second] = ids[ids.len() - 2..] else { panic!("{ids:?}") };
    assert_eq!((tokenizer.token_bytes(first), tokenizer.token_bytes(second)), (&[0xc3][..], &[0xa9][..]));
    let body = |tokens: usize| {
        let bias = json!({ first.to_string(): 100_050, second.to_string(): 100_000 });
        text("x", json!({ "logit_bias": bias, "frequency_penalty": 75, "max_tokens": tokens, "stream": true }))
    };
    let even = served.client.post(TEXT, &body(8));
    assert_eq!(joined(&even).0, "éééé");
    // An incomplete character at the end is sent once, as a replacement character.
    let odd = served.client.post(TEXT, &body(7));
    assert_eq!(joined(&odd).0, "ééé\u{fffd}");
    let usage = |reply: Reply| reply.json(200)["usage"]["completion_tokens"].clone();
    let mut whole = body(7);
    whole["stream"] = json!(false);
    assert_eq!(usage(served.client.post(TEXT, &whole)), 7);
}

#[test]
fn sampling_fields_take_effect() {
    let served = Served::new();
    let tell = |more: Value| {
        let mut body = json!({ "prompt": "One day", "max_tokens": 24, "temperature": 1.2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        said(&served.client.post(TEXT, &body).json(200))
    };
    let greedy = tell(json!({ "temperature": 0 }));
    assert_eq!(tell(json!({ "seed": 5 })), tell(json!({ "seed": 5 })));
    assert_ne!(tell(json!({ "seed": 5 })), tell(json!({ "seed": 6 })));
    // Each of these options leaves one token to choose from.
    for one in [json!({ "top_k": 1 }), json!({ "top_p": 0 }), json!({ "min_p": 1 })] {
        assert_eq!(tell(one.clone()), greedy, "{one}");
    }
    let banned: Value = served
        .engine
        .tokenizer()
        .encode(&greedy, thermocline_engine::tokenizer::EncodeOptions::PLAIN)
        .unwrap()
        .iter()
        .map(|id| (id.to_string(), json!(-1000)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for other in [
        json!({ "temperature": 0, "frequency_penalty": 50 }),
        json!({ "temperature": 0, "presence_penalty": 50 }),
        json!({ "temperature": 0, "repeat_penalty": 100 }),
        json!({ "temperature": 0, "logit_bias": banned }),
    ] {
        assert_ne!(tell(other.clone()), greedy, "{other}");
    }
}

#[test]
fn models_and_status_are_reported() {
    let served = Served::new();
    let models = served.client.get("/v1/models").json(200);
    assert_eq!((&models["object"], models["data"].as_array().unwrap().len()), (&json!("list"), 1));
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["object"]), (&json!("Storyteller"), &json!("model")));
    assert_eq!(served.client.get("/v1/models/Storyteller").json(200), models["data"][0]);
    assert_eq!(served.client.get("/v1/models/gpt-4o").error(404)["code"], "model_not_found");
    assert_eq!(served.client.get("/health").json(200)["status"], "ok");
    served.client.post(CHAT, &chat(QUESTION, json!({ "max_tokens": 5 }))).json(200);
    let figures = served.client.get("/v1/thermocline").json(200);
    assert_eq!((&figures["tokens"]["generated"], &figures["device"]["on"]), (&json!(5), &json!("cpu")));
    assert_eq!((&figures["sparsity"]["mode"], &figures["requests"]["total"]), (&json!("exact"), &json!(6)));
    assert_eq!(figures["last_answer"]["reason"], "max_tokens");
    assert!(figures["last_answer"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
    let status = served.server.status();
    assert_eq!((status.requests, status.waiting, status.answering), (6, 0, false));
    assert!(status.last_error.unwrap().contains("gpt-4o"));
}

#[test]
fn model_name_may_contain_any_character() {
    let served = Served::new();
    let name = "Grüße/7B Q4_0 100%";
    served.offers(Ok(offer(name, &served.engine)));
    assert_eq!(served.client.get("/v1/models/Gr%C3%BC%C3%9Fe%2F7B%20Q4_0%20100%25").json(200)["id"], name);
    let answer = served.client.post(CHAT, &chat(QUESTION, json!({ "model": name, "max_tokens": 2 }))).json(200);
    assert_eq!(answer["model"], name);
}

#[test]
fn server_follows_model_changes_and_failures() {
    let served = Served::new();
    let ask = |client: &Client| client.post(CHAT, &chat(QUESTION, json!({ "max_tokens": 2 })));
    ask(&served.client).json(200);
    served.offers(Err("no model is open".to_owned()));
    for reply in [ask(&served.client), served.client.get("/health"), served.client.get("/v1/models/Storyteller")] {
        let error = reply.error(503);
        assert_eq!((&error["message"], &error["code"]), (&json!("no model is open"), &json!("service_unavailable")));
    }
    assert_eq!(served.client.get("/v1/models").json(200)["data"], json!([]));
    let other = storyteller();
    served.offers(Ok(offer("Other", &other)));
    assert_eq!(ask(&served.client).json(200)["model"], "Other");
    assert_eq!(other.telemetry().generated_tokens, 2);
    other.break_down();
    let error = ask(&served.client).error(503);
    assert!(error["message"].as_str().unwrap().contains("engine stopped"), "{error}");
    served.offers(Ok(offer("Storyteller", &served.engine)));
    assert_eq!(ask(&served.client).json(200)["model"], "Storyteller");
}
