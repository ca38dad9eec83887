//! Anthropic's protocol over real connections, with the built-in model.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_tests::{
    http::Reply,
    served::{CHAT, Served, chat},
};

const MESSAGES: &str = "/v1/messages";

/// Returns a request for a greedy answer. `more` has further fields of the request.
fn message(text: &str, more: Value) -> Value {
    let mut body = json!({ "max_tokens": 24, "temperature": 0, "messages": [{ "role": "user", "content": text }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns names and data of a stream's events.
fn events(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, 200, "{reply:?}");
    let event = |event: &str| {
        let (name, data) = event.split_once('\n')?;
        let data: Value = serde_json::from_str(data.strip_prefix("data: ")?).ok()?;
        Some((name.strip_prefix("event: ")?.to_owned(), data))
    };
    let read = |text: &str| event(text).unwrap_or_else(|| panic!("not an event: {text}"));
    reply.body.split_terminator("\n\n").map(read).collect()
}

fn error(reply: &Reply, status: u16) -> (String, String) {
    let json = reply.json(status);
    assert_eq!(json["type"], "error", "{json}");
    let text = |field: &str| json["error"][field].as_str().unwrap().to_owned();
    (text("type"), text("message"))
}

#[test]
fn message_says_what_a_chat_completion_says_whole_and_streamed() {
    let served = Served::new();
    let wanted = served.client.post(CHAT, &chat("Tell me a story.", json!({ "max_tokens": 24 }))).json(200);
    let wanted = &wanted["choices"][0]["message"]["content"];
    let whole = served.client.post(MESSAGES, &message("Tell me a story.", json!({ "model": "claude" }))).json(200);
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_sequence"]),
        (&json!("message"), &json!("assistant"), &Value::Null)
    );
    assert_eq!((&whole["content"][0]["type"], &whole["content"][0]["text"]), (&json!("text"), wanted));
    assert_eq!((&whole["stop_reason"], &whole["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(24)));
    let usage =
        |usage: &Value| usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    let prompt = usage(&whole["usage"]);

    let counted = served
        .client
        .post("/v1/messages/count_tokens", &json!({ "messages": [{ "role": "user", "content": "Tell me a story." }] }));
    assert_eq!(counted.json(200), json!({ "input_tokens": prompt }));

    let reply = served.client.post(MESSAGES, &message("Tell me a story.", json!({ "stream": true })));
    let events = events(&reply);
    assert!(events.iter().all(|(name, data)| data["type"] == **name), "{events:?}");
    let names: Vec<&str> = events.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(usage(&events[0].1["message"]["usage"]), prompt);
    let deltas = events.iter().filter(|(name, _)| name == "content_block_delta");
    let text: String = deltas.map(|(_, data)| data["delta"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, wanted.as_str().unwrap());
    let (_, last) = &events[events.len() - 2];
    assert_eq!((&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(24)));
}

#[test]
fn message_ends_at_a_stop_sequence_and_continues_a_prefill() {
    let served = Served::new();
    let whole = served.client.post(MESSAGES, &message("Tell me a story.", json!({}))).json(200);
    let text = whole["content"][0]["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(4).unwrap();
    let stopped =
        served.client.post(MESSAGES, &message("Tell me a story.", json!({ "stop_sequences": [word] }))).json(200);
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));
    let short = stopped["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with(short) && !short.contains(word), "{short}");
    let begun = json!({ "messages": [
        { "role": "user", "content": [{ "type": "text", "text": "Tell me a story." }] },
        { "role": "assistant", "content": short },
    ] });
    let rest = served.client.post(MESSAGES, &message("", begun.clone())).json(200);
    let mut body = chat("", json!({ "max_tokens": 24 }));
    body["messages"] = begun["messages"].clone();
    let wanted = served.client.post(CHAT, &body).json(200);
    assert_eq!(rest["content"][0]["text"], wanted["choices"][0]["message"]["content"]);
}

#[test]
fn forced_tool_is_called_whole_and_streamed_and_its_result_is_answered() {
    let served = Served::new();
    let schema = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Ulm", "Rome"] } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let tools = json!([{ "name": "weather", "description": "Tells the weather.", "input_schema": schema }]);
    for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "weather" })] {
        let more = json!({ "tools": tools, "tool_choice": choice, "max_tokens": 200 });
        let whole = served.client.post(MESSAGES, &message("How is the weather?", more.clone())).json(200);
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        let call = whole["content"].as_array().unwrap().last().unwrap();
        assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("weather")));
        assert!(["Ulm", "Rome"].contains(&call["input"]["city"].as_str().unwrap()), "{call}");

        let mut body = message("How is the weather?", more);
        body["stream"] = json!(true);
        let events = events(&served.client.post(MESSAGES, &body));
        let start = events.iter().find(|(_, data)| data["content_block"]["type"] == "tool_use").unwrap();
        assert_eq!(start.1["content_block"]["input"], json!({}));
        let parts = events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str());
        let input: Value = serde_json::from_str(&parts.collect::<String>()).unwrap();
        assert_eq!(input, call["input"]);

        let answered = json!({ "tools": tools, "messages": [
            { "role": "user", "content": "How is the weather?" },
            { "role": "assistant", "content": [call] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": call["id"], "content": "Sunny." }] },
        ] });
        let reply = served.client.post(MESSAGES, &message("", answered)).json(200);
        assert_eq!(reply["role"], "assistant");
    }
}

#[test]
fn refusals_have_the_protocols_shape_and_the_key_may_be_in_its_header() {
    let served = Served::with(|options| options.key = Some("secret".to_owned()));
    let body = message("hi", json!({}));
    let (kind, _) = error(&served.client.post(MESSAGES, &body), 401);
    assert_eq!(kind, "authentication_error");
    let client = served.client.with("x-api-key", "secret").with("anthropic-version", "2023-06-01");
    assert_eq!(client.post(MESSAGES, &body).json(200)["type"], "message");
    for (body, says) in [
        (json!({ "messages": [] }), "max_tokens: expected"),
        (message("hi", json!({ "top_k": "many" })), "top_k: expected"),
        (message("hi", json!({ "mcp_servers": [{}] })), "`mcp_servers` is not supported"),
        (message("hi", json!({ "temperature": -3 })), "temperature"),
    ] {
        let (kind, message) = error(&client.post(MESSAGES, &body), 400);
        assert!(kind == "invalid_request_error" && message.contains(says), "{message}");
    }
    error(&client.send("POST", MESSAGES, "{"), 400);
    assert_eq!(error(&client.get(MESSAGES), 405).0, "invalid_request_error");
    let long = json!({ "messages": [{ "role": "user", "content": "word ".repeat(20_000) }] });
    let (kind, says) = error(&client.post(MESSAGES, &message("", long.clone())), 400);
    assert!(kind == "invalid_request_error" && says.contains("context holds"), "{says}");
    let (mut streamed, counted) = (message("", long.clone()), client.post("/v1/messages/count_tokens", &long));
    assert!(counted.json(200)["input_tokens"].as_u64().unwrap() >= 20_000);
    streamed["stream"] = json!(true);
    error(&client.post(MESSAGES, &streamed), 400);
}

#[test]
fn billing_line_that_changes_with_every_turn_leaves_the_prompt_reusable() {
    let served = Served::new();
    let rules = "You are a helpful agent. Read the files before you change them. ".repeat(4);
    let system = |mark: &str| {
        let line = format!("x-anthropic-billing-header: cc_version=2.1.0; cch={mark};");
        json!([{ "type": "text", "text": line }, { "type": "text", "text": rules }])
    };
    let first = message("Hello.", json!({ "system": system("0a1b2"), "max_tokens": 2 }));
    let plain = message("Hello.", json!({ "system": rules, "max_tokens": 2 }));
    let count = |body: &Value| {
        let body = json!({ "system": body["system"], "messages": body["messages"] });
        served.client.post("/v1/messages/count_tokens", &body).json(200)["input_tokens"].as_u64().unwrap()
    };
    assert_eq!(count(&first), count(&plain));
    let begun = served.client.post(MESSAGES, &first).json(200);
    let mut second = message("", json!({ "system": system("f9e8d"), "max_tokens": 2 }));
    second["messages"] = json!([
        { "role": "user", "content": "Hello." },
        { "role": "assistant", "content": begun["content"][0]["text"] },
        { "role": "user", "content": "Go on." },
    ]);
    let usage = &served.client.post(MESSAGES, &second).json(200)["usage"];
    let reused = usage["cache_read_input_tokens"].as_u64().unwrap();
    assert!(reused + 8 > count(&first), "{reused} of {}: {usage}", count(&first));
    let strict = Served::with(|options| options.strict = true);
    let told = strict.client.post(MESSAGES, &first).json(200)["usage"]["input_tokens"].as_u64().unwrap();
    assert!(told > count(&first), "{told}");
}
