//! Schemas of answers and of tool parameters, in the forms that clients send, with the built-in
//! model.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_tests::served::{CHAT, Served, chat};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const OLLAMA: &str = "/api/chat";

fn function(name: &str, parameters: Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

/// Returns name and arguments of the call that `choice` forces.
fn forced(served: &Served, tools: &Value, choice: &Value) -> (String, Value) {
    let more = json!({ "tools": tools, "tool_choice": choice, "max_tokens": 300 });
    let answer = served.client.post(CHAT, &chat("Water the plants.", more)).json(200);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    let arguments = function["arguments"].as_str().unwrap();
    let value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    (function["name"].as_str().unwrap().to_owned(), value)
}

/// Returns two tools whose schemas define the same names, in the forms that schema generators use.
fn garden() -> Value {
    let water = json!({
        "type": "object", "properties": { "how": { "$ref": "#/$defs/How" } }, "required": ["how"], "additionalProperties": false,
        "$defs": {
            "How": { "$ref": "#/$defs/Kind" },
            "Kind": { "enum": ["rain", "tap"] },
        },
    });
    let wait = json!({
        "type": "object", "properties": { "until": { "$ref": "#/definitions/How" } }, "required": ["until"],
        "additionalProperties": false, "definitions": { "How": { "enum": ["mon", "tue"] } },
    });
    json!([function("water", water), function("wait", wait)])
}

fn check_garden(name: &str, arguments: &Value) {
    match name {
        "water" => assert!(["rain", "tap"].contains(&arguments["how"].as_str().unwrap()), "{arguments}"),
        "wait" => assert!(["mon", "tue"].contains(&arguments["until"].as_str().unwrap()), "{arguments}"),
        other => panic!("called {other}"),
    }
}

#[test]
fn references_in_parameters_mean_the_tools_own_schema_in_every_protocol() {
    let served = Served::new();
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    for choice in [json!("required"), named("water"), named("wait")] {
        let (name, arguments) = forced(&served, &garden(), &choice);
        check_garden(&name, &arguments);
        assert!(choice == "required" || choice["function"]["name"] == *name, "{name}");
    }
    let user = json!([{ "role": "user", "content": "Water the plants." }]);
    let functions: Vec<Value> = garden().as_array().unwrap().iter().map(|it| it["function"].clone()).collect();
    for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "wait" })] {
        let tools: Vec<Value> =
            functions.iter().map(|it| json!({ "name": it["name"], "input_schema": it["parameters"] })).collect();
        let body =
            json!({ "messages": user, "max_tokens": 120, "temperature": 0, "tools": tools, "tool_choice": choice });
        let answer = served.client.post(MESSAGES, &body).json(200);
        let block = &answer["content"][0];
        assert_eq!((&answer["stop_reason"], &block["type"]), (&json!("tool_use"), &json!("tool_use")), "{answer}");
        check_garden(block["name"].as_str().unwrap(), &block["input"]);
    }
    let tools: Vec<Value> = functions
        .iter()
        .map(|it| json!({ "type": "function", "name": it["name"], "parameters": it["parameters"] }))
        .collect();
    let body = json!({ "input": "Water the plants.", "max_output_tokens": 120, "temperature": 0, "tools": tools, "tool_choice": "required" });
    let answer = served.client.post(RESPONSES, &body).json(200);
    let item = &answer["output"][0];
    check_garden(item["name"].as_str().unwrap(), &serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap());
}

#[test]
fn escaped_references_and_the_clients_options_are_understood_in_every_schema() {
    let served = Served::new();
    let schema = json!({
        "type": "object",
        "properties": {
            "leaf": { "$ref": "#/$defs/Leaf%5Bint%5D" }, "root": { "$ref": "#/$defs/deep~1root" }, "tilde": { "$ref": "#/$defs/a~0b" },
            "twice": { "$ref": "#/$defs/deep%7E1root" }, "space": { "$ref": "#/$defs/a%20b" }, "cent": { "$ref": "#/$defs/1%25" },
            "size": { "$ref": "#/$defs/Gr%C3%B6%C3%9Fe" },
        },
        "required": ["leaf", "root", "tilde", "twice", "space", "cent", "size"], "additionalProperties": false,
        "$defs": {
            "Leaf[int]": { "enum": [3, 5] }, "deep/root": { "enum": ["tap"] }, "a~b": { "const": true }, "a b": { "type": "null" },
            "1%": { "const": "c" }, "Größe": { "const": "L" },
        },
        "x-guidance": { "whitespace_flexible": true },
    });
    let check = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(value["leaf"] == 3 || value["leaf"] == 5, "{text}");
        let rest = json!({ "root": "tap", "tilde": true, "twice": "tap", "space": null, "cent": "c", "size": "L" });
        rest.as_object().unwrap().iter().for_each(|(key, want)| assert_eq!(value[key], *want, "{text}"));
        assert!(!text.contains('\n') && !text.contains("  "), "white space is the server's: {text}");
    };
    let format = json!({ "type": "json_schema", "json_schema": { "name": "plant", "schema": schema } });
    let more = json!({ "response_format": format, "max_tokens": 150 });
    let answer = served.client.post(CHAT, &chat("Name a plant.", more)).json(200);
    check(answer["choices"][0]["message"]["content"].as_str().unwrap());
    let user = json!([{ "role": "user", "content": "Name a plant." }]);
    let body = json!({ "messages": user, "format": schema, "stream": false, "options": { "num_predict": 150, "temperature": 0 } });
    check(served.client.post(OLLAMA, &body).json(200)["message"]["content"].as_str().unwrap());
    let text = json!({ "format": { "type": "json_schema", "name": "plant", "schema": schema } });
    let body = json!({ "input": "Name a plant.", "text": text, "max_output_tokens": 150, "temperature": 0 });
    check(served.client.post(RESPONSES, &body).json(200)["output"][0]["content"][0]["text"].as_str().unwrap());
    // The prompt also contains the tool's parameters, and this model's context is short.
    let few = json!({
        "type": "object", "required": ["leaf", "root"], "additionalProperties": false,
        "properties": { "leaf": { "$ref": "#/$defs/Leaf%5Bint%5D" }, "root": { "$ref": "#/$defs/deep~1root" } },
        "$defs": { "Leaf[int]": { "enum": [3, 5] }, "deep/root": { "enum": ["tap"] } },
    });
    let (_, arguments) = forced(&served, &json!([function("plant", few)]), &json!("required"));
    assert!((arguments["leaf"] == 3 || arguments["leaf"] == 5) && arguments["root"] == "tap", "{arguments}");
}

#[test]
fn forced_calls_without_parameters_or_types_are_objects() {
    let served = Served::new();
    let ring = json!({ "type": "function", "function": { "name": "ring" } });
    for tool in [
        function("ring", json!({})),
        ring,
        function("ring", json!({ "type": "object", "properties": {} })),
        function("ring", json!({ "type": "object", "properties": null, "required": null })),
    ] {
        let (name, arguments) = forced(&served, &json!([tool]), &json!("required"));
        assert_eq!((&*name, arguments), ("ring", json!({})), "{tool}");
    }
    let untyped = function(
        "ring",
        json!({ "properties": { "times": { "enum": [2] } }, "required": ["times"], "additionalProperties": false }),
    );
    assert_eq!(forced(&served, &json!([untyped]), &json!("required")).1, json!({ "times": 2 }));
    let open = function("ring", json!({ "properties": { "times": { "enum": [2] } }, "required": ["times"] }));
    let more = json!({ "tools": [open], "tool_choice": "required", "max_tokens": 300 });
    let answer = served.client.post(CHAT, &chat("Ring the bell.", more)).json(200);
    let arguments = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(arguments.starts_with("{\"times\": 2"), "{arguments}");
}

/// Returns token limits that end a forced call before, in and behind its arguments.
fn limits(served: &Served) -> impl Iterator<Item = usize> {
    let tools = json!([function(
        "ring",
        json!({ "properties": { "times": { "enum": [2] } }, "required": ["times"], "additionalProperties": false })
    )]);
    let more = json!({ "tools": tools, "tool_choice": "required" });
    let whole = served.client.post(CHAT, &chat("Ring the bell.", more)).json(200);
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
    (1..whole["usage"]["completion_tokens"].as_u64().unwrap() as usize).step_by(2)
}

#[test]
fn calls_that_break_off_at_the_limit_are_never_complete_in_any_protocol() {
    let served = Served::new();
    let parameters =
        json!({ "properties": { "times": { "enum": [2] } }, "required": ["times"], "additionalProperties": false });
    let whole = "{\"times\": 2}";
    let user = json!([{ "role": "user", "content": "Ring the bell." }]);
    let mut begun = 0;
    for limit in limits(&served) {
        let more =
            json!({ "tools": [function("ring", parameters.clone())], "tool_choice": "required", "max_tokens": limit });
        let answer = served.client.post(CHAT, &chat("Ring the bell.", more.clone())).json(200);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        let call = &choice["message"]["tool_calls"][0]["function"];
        if let Some(arguments) = call["arguments"].as_str() {
            begun += 1;
            assert!(whole.starts_with(arguments), "{limit}: {arguments}");
        }
        let mut body = chat("Ring the bell.", more);
        body["stream"] = json!(true);
        let events = served.client.post(CHAT, &body).events();
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]);
        let streamed: String = deltas.filter_map(Value::as_str).collect();
        assert_eq!(streamed, call["arguments"].as_str().unwrap_or_default(), "{limit}");
        assert!(events.iter().any(|event| event["choices"][0]["finish_reason"] == "length"), "{events:?}");

        let tools = json!([{ "name": "ring", "input_schema": parameters }]);
        let body = json!({ "messages": user, "max_tokens": limit, "temperature": 0, "tools": tools, "tool_choice": { "type": "any" } });
        let answer = served.client.post(MESSAGES, &body).json(200);
        assert_eq!(answer["stop_reason"], "max_tokens", "{answer}");
        let blocks = answer["content"].as_array().unwrap();
        assert!(blocks.iter().all(|block| block["input"] != json!({})), "{answer}");

        let tools = json!([{ "type": "function", "name": "ring", "parameters": parameters }]);
        let body = json!({ "input": "Ring the bell.", "max_output_tokens": limit, "temperature": 0, "tools": tools, "tool_choice": "required" });
        let answer = served.client.post(RESPONSES, &body).json(200);
        assert_eq!((&answer["status"], &answer["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
        let arguments = answer["output"][0]["arguments"].as_str().unwrap_or_default();
        assert!(whole.starts_with(arguments), "{answer}");
    }
    assert!(begun > 2, "calls have begun in {begun} answers");
}

#[test]
fn formats_alternatives_and_keywords_that_cannot_be_followed_constrain_nothing_unless_strict() {
    let served = Served::new();
    let call = |schema: Value, strict: bool| {
        let parameters = json!({ "type": "object", "properties": { "it": schema }, "required": ["it"], "additionalProperties": false });
        let tool =
            json!({ "type": "function", "function": { "name": "pick", "parameters": parameters, "strict": strict } });
        let more = json!({ "tools": [tool], "tool_choice": "required", "max_tokens": 150 });
        served.client.post(CHAT, &chat("Which?", more))
    };
    for (schema, name) in [
        (json!({ "type": "string", "format": "file-path", "maxLength": 3 }), "format"),
        (json!({ "type": "string", "format": "uuid4", "maxLength": 3 }), "format"),
        (
            json!({ "type": "array", "items": { "enum": ["a", "b"] }, "uniqueItems": true, "maxItems": 1 }),
            "uniqueItems",
        ),
        (json!({ "enum": ["a"], "not": { "const": "b" } }), "not"),
        (json!({ "enum": ["a"], "if": {}, "then": {} }), "if"),
        (json!({ "type": "array", "contains": {}, "maxItems": 1, "items": { "enum": [1] } }), "contains"),
        (json!({ "const": {}, "propertyNames": { "maxLength": 3 } }), "propertyNames"),
        (json!({ "const": {}, "dependentRequired": { "a": ["b"] } }), "dependentRequired"),
        (json!({ "const": {}, "unevaluatedProperties": false }), "unevaluatedProperties"),
    ] {
        let answer = call(schema.clone(), false).json(200);
        let arguments = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(arguments).unwrap().get("it").is_some(), "{arguments}");
        let error = call(schema, true).error(400);
        assert_eq!(error["param"], "tools[0]", "{error}");
        assert!(error["message"].as_str().unwrap().contains(&format!("#/properties/it/{name}")), "{error}");
    }
    for schema in [
        json!({ "oneOf": [{ "const": 1, "title": "few" }, { "const": 2, "title": "many" }] }),
        json!({
            "type": "object", "properties": { "file": { "enum": ["a"] }, "link": { "enum": ["b"] } },
            "oneOf": [{ "required": ["file"] }, { "required": ["link"] }], "additionalProperties": false,
        }),
    ] {
        let answer = call(schema, true).json(200);
        let arguments = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        let it: Value = serde_json::from_str::<Value>(arguments).unwrap()["it"].clone();
        let known =
            [json!(1), json!(2), json!({ "file": "a" }), json!({ "link": "b" }), json!({ "file": "a", "link": "b" })];
        assert!(known.contains(&it), "{it}");
    }
    let answer = call(json!({ "type": "number", "minimum": 3.3, "maximum": 3.4 }), false).json(200);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() < 150, "numbers end");
}

#[test]
fn errors_of_expressions_name_the_clients_field_the_expression_and_the_place() {
    let served = Served::new();
    for pattern in ["^(?!\\s)[a-z]+$", "(?<=a)b", "(a)\\1", "a\\0", "[a"] {
        let schema = json!({ "type": "object", "properties": { "latin": { "type": "string", "pattern": pattern } } });
        let said = |path: &str, body: Value| {
            let error = served.client.post(path, &body).json(400);
            let message = error["error"]["message"].as_str().or(error["error"].as_str()).unwrap().to_owned();
            assert!(message.contains(&format!("`{pattern}`, character ")), "{message}");
            (message, error["error"]["param"].clone())
        };
        let format = json!({ "type": "json_schema", "json_schema": { "name": "plant", "schema": schema } });
        let (message, param) = said(CHAT, chat("Name a plant.", json!({ "response_format": format })));
        assert!(
            message.starts_with("response_format: expected") && message.contains("#/properties/latin/pattern"),
            "{message}"
        );
        assert_eq!(param, "response_format");
        let tools = json!([function("a", json!({})), function("b", json!({})), function("c", schema.clone())]);
        let (message, param) = said(CHAT, chat("Name a plant.", json!({ "tools": tools, "tool_choice": "required" })));
        assert!(message.starts_with("tools[2]: expected") && param == "tools[2]", "{message}");
        let (message, param) =
            said(CHAT, chat("Hi", json!({ "response_format": { "type": "regex", "pattern": pattern } })));
        assert!(message.starts_with("response_format: expected") && param == "response_format", "{message}");
        let (message, param) = said(CHAT, chat("Hi", json!({ "guided_regex": pattern })));
        assert!(message.starts_with("guided_regex: expected") && param == "guided_regex", "{message}");
        let user = json!([{ "role": "user", "content": "Hi" }]);
        let (message, _) = said(OLLAMA, json!({ "messages": user, "format": schema }));
        assert!(message.starts_with("format: expected"), "{message}");
        let text = json!({ "format": { "type": "json_schema", "name": "plant", "schema": schema } });
        let (message, param) = said(RESPONSES, json!({ "input": "Hi", "text": text }));
        assert!(message.starts_with("text.format: expected") && param == "text.format", "{message}");
        let format = json!({ "type": "json_schema", "schema": schema });
        let body = json!({ "messages": user, "max_tokens": 9, "output_config": { "format": format } });
        assert!(said(MESSAGES, body).0.starts_with("output_config.format: expected"));
        let body = json!({ "messages": user, "max_tokens": 9, "output_format": format });
        assert!(said(MESSAGES, body).0.starts_with("output_format: expected"));
    }
    let unknown = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "nonsense" } } });
    let error = served.client.post(CHAT, &chat("Hi", json!({ "response_format": unknown }))).error(400);
    assert_eq!(error["param"], "response_format", "{error}");
}
