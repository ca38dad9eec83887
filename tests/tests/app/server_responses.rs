//! OpenAI's responses over real connections, with the built-in model.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_tests::{
    http::Reply,
    served::{CHAT, Served, chat},
};

const RESPONSES: &str = "/v1/responses";

fn asked(input: Value, more: Value) -> Value {
    let mut body = json!({ "input": input, "temperature": 0, "max_output_tokens": 24 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns the data of a stream's events. Checks that each event's name is its type and that they
/// are numbered.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{reply:?}");
    let event = |(at, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("{event}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!((name.strip_prefix("event: "), &data["sequence_number"]), (data["type"].as_str(), &json!(at)));
        data
    };
    reply.body.split_terminator("\n\n").enumerate().map(event).collect()
}

fn weather() -> Value {
    let schema = json!({
        "type": "object", "properties": { "city": { "enum": ["Ulm", "Rome"] } }, "required": ["city"],
        "additionalProperties": false,
    });
    json!([{ "type": "function", "name": "weather", "description": "Tells the weather.", "parameters": schema, "strict": true }])
}

#[test]
fn response_says_what_a_chat_completion_says_whole_and_streamed() {
    let served = Served::new();
    let wanted = served.client.post(CHAT, &chat("Tell me a story.", json!({ "max_tokens": 24 }))).json(200);
    let text = &wanted["choices"][0]["message"]["content"];
    for input in [json!("Tell me a story."), json!([{ "role": "user", "content": "Tell me a story." }])] {
        let whole = served.client.post(RESPONSES, &asked(input, json!({ "model": "gpt" }))).json(200);
        assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
        assert_eq!((&whole["output"][0]["type"], &whole["output"][0]["content"][0]["text"]), (&json!("message"), text));
        let (usage, counted) = (&whole["usage"], &wanted["usage"]);
        assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&counted["prompt_tokens"], &json!(24)));
        assert_eq!(whole["model"], "Storyteller");
    }
    let reply = served.client.post(RESPONSES, &asked(json!("Tell me a story."), json!({ "stream": true })));
    let events = events(&reply);
    let types: Vec<&str> = events.iter().map(|it| it["type"].as_str().unwrap()).collect();
    let begins =
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"];
    assert_eq!(types[..4], begins);
    let ends =
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"];
    assert_eq!(types[types.len() - 4..], ends);
    let deltas = events.iter().filter(|it| it["type"] == "response.output_text.delta");
    let joined: String = deltas.map(|it| it["delta"].as_str().unwrap()).collect();
    assert_eq!(&json!(joined), text);
    let last = &events[events.len() - 1]["response"];
    assert_eq!((&last["output"][0]["content"][0]["text"], &last["id"]), (text, &events[0]["response"]["id"]));
}

#[test]
fn response_is_continued_read_and_deleted_unless_it_is_not_kept() {
    let served = Served::new();
    let first =
        served.client.post(RESPONSES, &asked(json!("Hello!"), json!({ "instructions": "Be brief." }))).json(200);
    let id = first["id"].as_str().unwrap();
    let text = &first["output"][0]["content"][0]["text"];
    let next = json!({ "previous_response_id": id });
    let second = served.client.post(RESPONSES, &asked(json!("And then?"), next.clone())).json(200);
    assert_eq!(second["previous_response_id"], id);
    let messages = json!([
        { "role": "user", "content": "Hello!" },
        { "role": "assistant", "content": text },
        { "role": "user", "content": "And then?" },
    ]);
    let mut whole = chat("", json!({ "max_tokens": 24 }));
    whole["messages"] = messages;
    let wanted = served.client.post(CHAT, &whole).json(200);
    assert_eq!(second["output"][0]["content"][0]["text"], wanted["choices"][0]["message"]["content"]);

    let path = format!("{RESPONSES}/{id}");
    assert_eq!(served.client.get(&path).json(200), first);
    assert_eq!(served.client.send_empty("DELETE", &path).json(200)["deleted"], true);
    served.client.get(&path).error(404);
    served.client.send_empty("DELETE", &path).error(404);
    let error = served.client.post(RESPONSES, &asked(json!("And then?"), next)).error(400);
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("previous_response_not_found"), &json!("previous_response_id"))
    );
    let unkept = served.client.post(RESPONSES, &asked(json!("Hello!"), json!({ "store": false }))).json(200);
    served.client.get(&format!("{RESPONSES}/{}", unkept["id"].as_str().unwrap())).error(404);
}

#[test]
fn forced_function_is_called_whole_and_streamed_and_its_output_is_answered() {
    let served = Served::new();
    let more = json!({ "tools": weather(), "tool_choice": "required", "max_output_tokens": 200 });
    let whole = served.client.post(RESPONSES, &asked(json!("How is the weather?"), more.clone())).json(200);
    let call = whole["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&call["type"], &call["name"], &whole["status"]),
        (&json!("function_call"), &json!("weather"), &json!("completed"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["Ulm", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{call}");

    let mut body = asked(json!("How is the weather?"), more);
    (body["stream"], body["tool_choice"]) = (json!(true), json!({ "type": "function", "name": "weather" }));
    let events = events(&served.client.post(RESPONSES, &body));
    let of = |kind: &str| events.iter().filter(|it| it["type"] == kind).collect::<Vec<_>>();
    let deltas: String =
        of("response.function_call_arguments.delta").iter().map(|it| it["delta"].as_str().unwrap()).collect();
    assert_eq!(of("response.function_call_arguments.done")[0]["arguments"], deltas.as_str());
    assert_eq!(serde_json::from_str::<Value>(&deltas).unwrap(), arguments);

    let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "Sunny." });
    let by_id = json!({ "tools": weather(), "previous_response_id": whole["id"] });
    let continued = served.client.post(RESPONSES, &asked(json!([output]), by_id)).json(200);
    let items = json!([{ "role": "user", "content": "How is the weather?" }, call, output]);
    let resent = served.client.post(RESPONSES, &asked(items, json!({ "tools": weather() }))).json(200);
    let text = |response: &Value| response["output"][0]["content"][0]["text"].clone();
    assert_eq!(text(&continued), text(&resent));
}

#[test]
fn text_format_is_followed_and_what_cannot_be_honoured_is_refused() {
    let served = Served::new();
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [1, 2] } }, "required": ["n"], "additionalProperties": false });
    let format =
        json!({ "text": { "format": { "type": "json_schema", "name": "n", "strict": true, "schema": schema } } });
    let reply = served.client.post(RESPONSES, &asked(json!("A number."), format)).json(200);
    let answer: Value = serde_json::from_str(reply["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(answer["n"] == 1 || answer["n"] == 2, "{answer}");
    for (body, param) in [
        (json!({}), "input"),
        (asked(json!("a"), json!({ "background": true })), "background"),
        (asked(json!("a"), json!({ "tools": [{ "name": "web_search" }] })), "tools[0].type"),
        (asked(json!("a"), json!({ "tool_choice": { "type": "web_search" } })), "tool_choice"),
        (asked(json!("a"), json!({ "temperature": "hot" })), "temperature"),
        (asked(json!("a"), json!({ "reasoning": { "effort": "huge" } })), "reasoning.effort"),
    ] {
        assert_eq!(served.client.post(RESPONSES, &body).error(400)["param"], param, "{body}");
    }
    let strict = Served::with(|options| options.strict = true);
    for (body, param) in [
        (asked(json!("a"), json!({ "tools": [{ "type": "web_search" }] })), "tools[0].type"),
        (asked(json!("a"), json!({ "client_metadata": { "origin": "cli" } })), "client_metadata"),
        (asked(json!([{ "type": "web_search_call" }]), json!({})), "input[0].type"),
    ] {
        assert_eq!(strict.client.post(RESPONSES, &body).error(400)["param"], param, "{body}");
    }
    strict.client.post(RESPONSES, &asked(json!("a"), json!({ "reasoning": { "effort": "low" } }))).json(200);
    strict.client.post(RESPONSES, &asked(json!("a"), json!({ "model": "gpt" }))).error(404);
}

/// Returns the tools that an agent sends in every request.
fn tools_of_an_agent() -> Value {
    let function = |name: &str| {
        let parameters = json!({ "type": "object", "properties": { "query": { "enum": ["files"] } }, "required": ["query"], "additionalProperties": false });
        json!({ "type": "function", "name": name, "description": "Does it.", "strict": false, "parameters": parameters })
    };
    json!([
        function("run"),
        { "type": "custom", "name": "edit", "description": "Takes a patch.", "format": { "type": "grammar", "syntax": "lark", "definition": "start: /.+/" } },
        { "type": "namespace", "name": "mcp__notes__", "description": "Notes.", "tools": [function("find")] },
        { "type": "web_search" },
        { "type": "image_generation", "output_format": "png" },
    ])
}

#[test]
fn requests_of_agents_with_tools_of_other_servers_are_answered_with_the_functions() {
    let served = Served::new();
    let agent = json!({
        "model": "any", "instructions": "You are an agent.", "store": false, "parallel_tool_calls": true,
        "client_metadata": { "origin": "cli" }, "tools": tools_of_an_agent(), "max_output_tokens": 120,
    });
    let with = |more: Value| {
        let mut body = asked(json!("List the files."), agent.clone());
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let free = served.client.post(RESPONSES, &with(json!({ "max_output_tokens": 8 }))).json(200);
    assert_eq!(free["tools"], tools_of_an_agent(), "they are repeated as they were sent");
    let without = served.client.post(RESPONSES, &with(json!({ "tools": [], "max_output_tokens": 8 }))).json(200);
    assert!(free["usage"]["input_tokens"].as_u64() > without["usage"]["input_tokens"].as_u64(), "functions are told");

    let choice = json!({ "type": "function", "namespace": "mcp__notes__", "name": "find" });
    let called = served.client.post(RESPONSES, &with(json!({ "tool_choice": choice }))).json(200);
    let call = &called["output"][0];
    let found = (&call["type"], &call["namespace"], &call["name"]);
    assert_eq!(found, (&json!("function_call"), &json!("mcp__notes__"), &json!("find")), "{called}");
    assert_eq!(
        serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap(),
        json!({ "query": "files" })
    );
    let mut streamed = with(json!({ "tool_choice": choice }));
    streamed["stream"] = json!(true);
    let events = events(&served.client.post(RESPONSES, &streamed));
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!((&done["item"]["namespace"], &done["item"]["name"]), (&json!("mcp__notes__"), &json!("find")));

    // The next request includes the call, its result, and results of other servers' tools. The
    // context has no room for the definitions of the tools.
    let history = json!([
        { "role": "user", "content": "List the files." }, call,
        { "type": "function_call_output", "call_id": call["call_id"], "output": "None." },
        { "type": "web_search_call", "id": "ws_1", "status": "completed", "action": { "type": "search", "query": "x" } },
        { "type": "custom_tool_call", "name": "edit", "input": "add a line", "call_id": "c2" },
        { "type": "custom_tool_call_output", "call_id": "c2", "output": "done" },
    ]);
    served.client.post(RESPONSES, &with(json!({ "input": history, "tools": [], "max_output_tokens": 8 }))).json(200);
}
