//! Requests in the forms of agents and of clients of other servers, with the built-in model.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::{Value, json};
use thermocline_engine::{
    format::{
        Bytes,
        gguf::{TensorInfo, from_bytes, to_bytes},
    },
    model::LoadOptions,
    session::{ContextPolicy, Engine, EngineOptions},
};
use thermocline_host::library::ModelId;
use thermocline_tests::{
    served::{CHAT, Served, TEXT, chat, offer, text},
    terminal::thermocline,
};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const RESPONSES: &str = "/v1/responses";
const OLLAMA_CHAT: &str = "/api/chat";
const OLLAMA_TEXT: &str = "/api/generate";

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

#[test]
fn negative_seeds_are_drawn_and_whole_numbers_may_have_a_point_on_every_route() {
    let served = Served::new();
    let said = |path: &str, seed: &Value| {
        let options = json!({ "seed": seed, "temperature": 1.2, "num_predict": 24.0 });
        let body = match path {
            CHAT => {
                json!({ "messages": user("Tell me about a boat."), "seed": seed, "temperature": 1.2, "max_tokens": 24.0 })
            }
            TEXT => json!({ "prompt": "One day", "seed": seed, "temperature": 1.2, "max_tokens": 24.0 }),
            RESPONSES => {
                json!({ "input": "Tell me about a boat.", "seed": seed, "temperature": 1.2, "max_output_tokens": 24.0 })
            }
            OLLAMA_CHAT => json!({ "messages": user("Tell me about a boat."), "stream": false, "options": options }),
            _ => json!({ "prompt": "Tell me about a boat.", "stream": false, "options": options }),
        };
        let answer = served.client.post(path, &body).json(200);
        for place in [
            "/choices/0/message/content",
            "/choices/0/text",
            "/output/0/content/0/text",
            "/message/content",
            "/response",
        ] {
            if let Some(text) = answer.pointer(place).and_then(Value::as_str) {
                return text.to_owned();
            }
        }
        panic!("no text: {answer}")
    };
    for path in [CHAT, TEXT, RESPONSES, OLLAMA_CHAT, OLLAMA_TEXT] {
        for any in [json!(-1), json!(-2.0), Value::Null] {
            assert_ne!(said(path, &any), said(path, &any), "{path} {any}");
        }
        assert_eq!(said(path, &json!(42)), said(path, &json!(42.0)), "{path}");
        assert_eq!(said(path, &json!(u64::MAX)), said(path, &json!(u64::MAX)), "{path}");
    }
    let error = served.client.post(CHAT, &chat("Hi", json!({ "seed": 1.5 }))).error(400);
    assert_eq!(error["param"], "seed");
}

/// Adds `value` to `body` at a JSON pointer. The last segment may be a new field.
fn with(mut body: Value, pointer: &str, value: Value) -> Value {
    let (place, field) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(place).unwrap()[field] = value;
    body
}

/// Returns a conversation with a tool call in Anthropic's form, with a place for every hint.
fn messages_body() -> Value {
    json!({
        "max_tokens": 3, "temperature": 0, "thinking": { "type": "disabled" },
        "messages": [
            { "role": "user", "content": "Hello" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "Hm.", "signature": "s" },
                { "type": "tool_use", "id": "a", "name": "look", "input": {} },
            ] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": "A boat." }] },
        ],
        "tools": [{ "name": "look", "input_schema": { "type": "object", "properties": {} } }],
    })
}

#[test]
fn hints_of_agents_pass_in_messages_unless_the_server_is_strict() {
    let served = Served::new();
    let strict = Served::with(|options| options.strict = true);
    let ephemeral = json!({ "type": "ephemeral" });
    let plain = served.client.post(MESSAGES, &messages_body()).json(200);
    let mut all = messages_body();
    for (pointer, value) in [
        ("/context_management", json!({ "edits": [] })),
        ("/output_config", json!({ "effort": "low" })),
        ("/cache_control", ephemeral.clone()),
        ("/inference_geo", json!("eu")),
        ("/speed", json!("fast")),
        ("/betas", json!(["a"])),
        ("/diagnostics", json!({ "previous_message_id": "m" })),
        ("/thinking/display", json!("omitted")),
        ("/tools/0/strict", json!(true)),
        ("/tools/0/eager_input_streaming", json!(true)),
        ("/tools/0/defer_loading", json!(false)),
        ("/tools/0/input_examples", json!([{}])),
        ("/tools/0/allowed_callers", json!(["direct"])),
        ("/tools/0/title", json!("Look")),
        ("/messages/1/content/0/cache_control", ephemeral),
        ("/messages/1/content/1/caller", json!({ "type": "direct" })),
        ("/messages/1/id", json!("m1")),
    ] {
        let body = with(messages_body(), pointer, value.clone());
        let answer = served.client.post(MESSAGES, &body).json(200);
        assert_eq!(
            (&answer["content"], &answer["usage"]["output_tokens"]),
            (&plain["content"], &json!(3)),
            "{pointer}"
        );
        let error = strict.client.post(MESSAGES, &body).json(400);
        let message = error["error"]["message"].as_str().unwrap().to_owned();
        let field = pointer.rsplit_once('/').unwrap().1;
        assert!(message.contains(field), "{pointer}: {message}");
        all = with(all, pointer, value);
    }
    assert_eq!(served.client.post(MESSAGES, &all).json(200)["content"], plain["content"]);
    served.client.post(COUNT, &all).json(200);
    for (pointer, value, says) in [
        ("/messages/0/content", json!([{ "type": "image", "source": {} }]), "messages[0].content[0].source.type"),
        ("/messages/0/content", json!([{ "type": "document", "source": {} }]), "messages[0].content[0].type"),
        ("/messages/2/content/0/content", json!([{ "type": "tool_reference", "tool_name": "a" }]), "content[0].type"),
        ("/tools/0/type", json!("web_search_20250305"), "tools[0].type"),
    ] {
        let error = served.client.post(MESSAGES, &with(messages_body(), pointer, value)).json(400);
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn hints_of_agents_pass_in_chats_unless_the_server_is_strict() {
    let served = Served::new();
    let strict = Served::with(|options| options.strict = true);
    let call = json!({ "id": "a", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let body = json!({
        "max_tokens": 3, "temperature": 0,
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "Hello" }] },
            { "role": "assistant", "content": [{ "type": "text", "text": "Hi" }], "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "a", "content": "7" },
            { "role": "user", "content": "Go on" },
        ],
    });
    let plain = served.client.post(CHAT, &body).json(200);
    let ephemeral = json!({ "type": "ephemeral" });
    let mut all = body.clone();
    for (pointer, value) in [
        ("/messages/0/content/0/cache_control", ephemeral.clone()),
        ("/messages/1/content/0/cache_control", ephemeral.clone()),
        ("/messages/2/cache_control", ephemeral.clone()),
        ("/messages/3/cache_control", ephemeral),
        ("/messages/1/reasoning_details", json!([{ "type": "x" }])),
        ("/messages/1/provider_specific_fields", json!({ "a": 1 })),
        ("/messages/1/id", json!("m1")),
        ("/messages/1/thinking", json!("Hm.")),
        ("/messages/1/prefix", json!(true)),
        ("/messages/1/finish_reason", json!("stop")),
        ("/messages/2/status", json!("success")),
        ("/include_reasoning", json!(true)),
        ("/usage", json!({ "include": true })),
        ("/provider", json!({ "order": ["a"] })),
        ("/ttl", json!(300)),
        ("/timeout", json!(60)),
        ("/truncate_prompt_tokens", json!(4096)),
    ] {
        let one = with(body.clone(), pointer, value.clone());
        let answer = served.client.post(CHAT, &one).json(200);
        assert_eq!(answer["choices"], plain["choices"], "{pointer}");
        assert_eq!(answer["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"], "{pointer}");
        let error = strict.client.post(CHAT, &one).error(400);
        let field = pointer.rsplit_once('/').unwrap().1;
        assert!(error["param"].as_str().unwrap().ends_with(field), "{pointer}: {error}");
        all = with(all, pointer, value);
    }
    assert_eq!(served.client.post(CHAT, &all).json(200)["choices"], plain["choices"]);
    served.client.post(CHAT, &with(body.clone(), "/reasoning", json!({ "effort": "low" }))).json(200);
    let refusal = with(body.clone(), "/messages/1/content", json!([{ "type": "refusal", "refusal": "Hi" }]));
    assert_eq!(served.client.post(CHAT, &refusal).json(200)["choices"], plain["choices"]);
    let image = with(body, "/messages/0/content", json!([{ "type": "image_url", "image_url": { "url": "a" } }]));
    assert_eq!(served.client.post(CHAT, &image).error(400)["param"], "messages");
}

#[test]
fn formats_of_messages_are_followed() {
    let served = Served::new();
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1] } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "schema": schema });
    for (field, value) in [("output_format", format.clone()), ("output_config", json!({ "format": format }))] {
        let mut body = json!({ "max_tokens": 40, "temperature": 0, "messages": user("Hello") });
        body[field] = value;
        assert_eq!(served.client.post(MESSAGES, &body).json(200)["content"][0]["text"], "{\"a\": 1}", "{field}");
    }
}

#[test]
fn system_among_messages_reaches_the_prompt_and_an_empty_answer_is_one() {
    let served = Served::new();
    let body = |system: Value| {
        json!({
            "max_tokens": 4, "system": "Answer shortly.",
            "messages": [
                { "role": "user", "content": "Tell me about a boat." },
                { "role": "system", "content": system },
                { "role": "user", "content": "And a lake." },
            ],
        })
    };
    let counted = |body: &Value| served.client.post(COUNT, body).json(200)["input_tokens"].as_u64().unwrap();
    let text = body(json!("It is evening now."));
    let blocks =
        body(json!([{ "type": "text", "text": "It is evening now.", "cache_control": { "type": "ephemeral" } }]));
    let mut without = text.clone();
    without["messages"].as_array_mut().unwrap().remove(1);
    assert!(counted(&text) > counted(&without), "{} {}", counted(&text), counted(&without));
    assert_eq!(counted(&text), counted(&blocks));
    let openai = json!({ "max_tokens": 4, "messages": [
        { "role": "system", "content": "Answer shortly." },
        { "role": "user", "content": "Tell me about a boat." },
        { "role": "system", "content": "It is evening now." },
        { "role": "user", "content": "And a lake." },
    ] });
    assert_eq!(served.client.post(CHAT, &openai).json(200)["usage"]["prompt_tokens"], counted(&text));
    for body in [&text, &blocks] {
        assert_eq!(served.client.post(MESSAGES, body).json(200)["usage"]["output_tokens"], 4);
    }
    let empty = json!({ "max_tokens": 4, "messages": [
        { "role": "user", "content": "Hi" }, { "role": "assistant", "content": [] }, { "role": "user", "content": "Well?" },
    ] });
    served.client.post(MESSAGES, &empty).json(200);
}

/// Writes a model whose logits are all NaN to a file.
fn broken_model(folder: &Path) -> std::path::PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf/llama-silu-gqa-256-F16.gguf");
    let file = from_bytes(&path, Bytes::new(std::fs::read(&path).unwrap())).unwrap();
    let nan: Vec<u8> = f32::NAN.to_le_bytes().repeat(1 << 12);
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|tensor| {
            let info = TensorInfo { name: tensor.name.clone(), ty: tensor.ty, shape: tensor.shape.clone() };
            let data = if tensor.name == "output_norm.weight" { &nan[..tensor.data.len()] } else { &tensor.data[..] };
            (info, data)
        })
        .collect();
    let path = folder.join("nan.gguf");
    std::fs::write(&path, to_bytes(file.container, &file.metadata, &tensors).unwrap()).unwrap();
    path
}

#[test]
fn logits_that_are_no_numbers_are_the_servers_fault_on_every_route_and_no_figure() {
    let folder = tempfile::tempdir().unwrap();
    let path = broken_model(folder.path());
    let served = Served::new();
    let engine = Engine::open(&path, EngineOptions::default()).unwrap();
    served.offers(Ok(offer("broken", &engine)));
    let says = "the model's logits: expected finite numbers, got NaN";
    let asked = json!({ "messages": user("Hi"), "max_tokens": 3 });
    for (path, body) in [
        (CHAT, asked.clone()),
        (CHAT, chat("Hi", json!({ "max_tokens": 3 }))),
        (CHAT, chat("Hi", json!({ "max_tokens": 3, "logprobs": true }))),
        (CHAT, chat("Hi", json!({ "max_tokens": 3, "response_format": { "type": "json_object" } }))),
        (TEXT, text("Once upon", json!({ "max_tokens": 3 }))),
        (TEXT, text("Once upon", json!({ "max_tokens": 0, "echo": true, "logprobs": 1 }))),
        (MESSAGES, asked.clone()),
        (RESPONSES, json!({ "input": "Hi", "max_output_tokens": 3 })),
        (OLLAMA_CHAT, json!({ "messages": user("Hi"), "stream": false })),
        (OLLAMA_TEXT, json!({ "prompt": "Hi", "stream": false })),
    ] {
        let error = served.client.post(path, &body).json(500);
        let message = error["error"]["message"].as_str().or(error["error"].as_str()).unwrap().to_owned();
        assert!(message.starts_with(says), "{path}: {message}");
    }
    let error = served.client.post("/v1/embeddings", &json!({ "input": "Hi" })).error(500);
    assert!(error["message"].as_str().unwrap().starts_with("the model's hidden states: expected finite"), "{error}");

    let model = path.to_str().unwrap();
    let ran = thermocline(&["run", "-m", model, "-p", "Once", "-n", "3", "--device", "cpu"]).refusal();
    assert!(ran.contains(says), "{ran}");
    let words = folder.path().join("text");
    std::fs::write(&words, "Once upon a time there was a little dog. ".repeat(100)).unwrap();
    for measurement in ["perplexity", "kl"] {
        let args =
            ["eval", measurement, "-m", model, "--text", words.to_str().unwrap(), "--ctx", "64", "--device", "cpu"];
        let evaluated = thermocline(&args).refusal();
        assert!(evaluated.contains(says), "{measurement}: {evaluated}");
    }
}

#[test]
fn client_that_bans_every_token_is_told_so() {
    let served = Served::new();
    let all: serde_json::Map<String, Value> =
        (0..served.engine.config().n_vocab).map(|id| (id.to_string(), json!(-1e39))).collect();
    let error = served.client.post(CHAT, &chat("Hi", json!({ "logit_bias": all, "max_tokens": 2 }))).error(400);
    assert_eq!(error["param"], "logits", "{error}");
}

/// Serves the built-in model with a context of 64 tokens. The context shifts if `shifts`.
fn small_context(shifts: bool) -> Served {
    let served = Served::new();
    let model = ModelId::Builtin.open(&LoadOptions::default()).unwrap();
    let engine = Engine::from_model(model, EngineOptions { context: Some(64), ..EngineOptions::default() }).unwrap();
    let mut small = offer("Storyteller", &engine);
    if shifts {
        small.defaults.on_full = ContextPolicy::Shift { keep: 1 };
    }
    served.offers(Ok(small));
    served
}

#[test]
fn long_chats_lose_whole_turns_with_shift_and_say_so_on_every_route_and_are_refused_without() {
    let words = "word ".repeat(20);
    let mut turns: Vec<Value> = Vec::new();
    for _ in 0..6 {
        turns.extend([json!({ "role": "user", "content": words }), json!({ "role": "assistant", "content": "Yes." })]);
    }
    turns.push(json!({ "role": "user", "content": "And now?" }));
    let (shifting, stopping) = (small_context(true), small_context(false));
    let long = words.repeat(20);
    for (path, place, body) in [
        (CHAT, "/usage/prompt_tokens_details", json!({ "messages": turns, "max_tokens": 2 })),
        (MESSAGES, "/usage", json!({ "messages": turns, "max_tokens": 2 })),
        (RESPONSES, "/usage/input_tokens_details", json!({ "input": turns, "max_output_tokens": 2 })),
        (OLLAMA_CHAT, "", json!({ "messages": turns, "stream": false, "options": { "num_predict": 2 } })),
    ] {
        let answer = shifting.client.post(path, &body).json(200);
        let told = answer.pointer(place).unwrap();
        assert!(told["forgotten_tokens"].as_u64().unwrap() > 20, "{answer}");
        assert!((1..=6).contains(&told["forgotten_turns"].as_u64().unwrap()), "{answer}");
        let refused = stopping.client.post(path, &body).json(400);
        assert!(refused.to_string().contains("but the context holds 64"), "{refused}");
    }
    // The server never shortens a question that is too long by itself.
    for (path, body) in [
        (CHAT, json!({ "messages": user(&long), "max_tokens": 2 })),
        (MESSAGES, json!({ "messages": user(&long), "max_tokens": 2 })),
        (RESPONSES, json!({ "input": long, "max_output_tokens": 2 })),
        (OLLAMA_CHAT, json!({ "messages": user(&long), "stream": false })),
        (OLLAMA_TEXT, json!({ "prompt": long, "stream": false })),
    ] {
        let refused = shifting.client.post(path, &body).json(400);
        assert!(refused.to_string().contains("but the context holds 64"), "{refused}");
    }
    let text = shifting.client.post(TEXT, &json!({ "prompt": long, "max_tokens": 2 })).json(200);
    assert!(text["usage"]["prompt_tokens_details"]["forgotten_tokens"].as_u64().unwrap() > 300, "{text}");
    stopping.client.post(TEXT, &json!({ "prompt": long, "max_tokens": 2 })).error(400);
}

#[test]
fn number_of_tokens_in_a_refusal_is_exact_or_a_least_one() {
    let served = Served::new();
    let message = |count: usize| {
        let messages: Vec<Value> = (0..count).map(|_| json!({ "role": "user", "content": "a" })).collect();
        let error = served.client.post(CHAT, &json!({ "messages": messages, "max_tokens": 1 })).error(400);
        error["message"].as_str().unwrap().to_owned()
    };
    let counted = |count: usize| {
        let messages: Vec<Value> = (0..count).map(|_| json!({ "role": "user", "content": "a" })).collect();
        served.client.post(COUNT, &json!({ "messages": messages })).json(200)["input_tokens"].as_u64().unwrap()
    };
    let few = 4 + served.engine.context() / 3;
    assert!(message(few).starts_with(&format!("the prompt has {} tokens, ", counted(few))), "{}", message(few));
    // From 64 KiB of text on, the server gives a lower bound of the number of tokens.
    let many = message(9001);
    let least =
        many.strip_prefix("the prompt has at least ").and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(least.is_some_and(|least| least <= counted(9001)), "{many}");
}
