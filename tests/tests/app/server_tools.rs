//! Tools and structured output over real connections, with the built-in model. A grammar forces
//! calls and JSON.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_engine::{runtime::Sparsity, session::SparsityChoice};
use thermocline_tests::{
    http::Reply,
    parrot::parrot,
    served::{CHAT, Served, TEXT, chat, offer, text},
};

fn weather() -> Value {
    json!({ "type": "function", "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": { "city": { "enum": ["Ulm", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
            "required": ["city", "days"],
            "additionalProperties": false,
        },
    } })
}

/// Joins the call of a stream from its deltas. Returns id, arguments, finish reason and number of
/// pieces.
fn joined_call(reply: &Reply) -> (String, String, Value, usize) {
    let (mut id, mut arguments, mut reason, mut pieces) = (String::new(), String::new(), Value::Null, 0);
    for event in reply.events() {
        let choice = &event["choices"][0];
        let call = &choice["delta"]["tool_calls"][0];
        if let Some(given) = call["id"].as_str() {
            assert_eq!((&call["index"], &call["function"]["name"]), (&json!(0), &json!("weather")));
            id.push_str(given);
        } else if let Some(more) = call["function"]["arguments"].as_str() {
            arguments.push_str(more);
            pieces += 1;
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (id, arguments, reason, pieces)
}

#[test]
fn forced_call_follows_the_schema_whole_and_streamed_and_its_result_is_answered() {
    let served = Served::new();
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for choice in [json!("required"), named] {
        let more = json!({ "tools": [weather()], "tool_choice": choice, "max_tokens": 200 });
        let whole = served.client.post(CHAT, &chat("How is the weather?", more.clone())).json(200);
        let choice = &whole["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("weather")));
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(["Ulm", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
        assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");

        let mut body = chat("How is the weather?", more);
        body["stream"] = json!(true);
        let (id, streamed, reason, pieces) = joined_call(&served.client.post(CHAT, &body));
        assert_eq!((serde_json::from_str::<Value>(&streamed).unwrap(), reason), (arguments, json!("tool_calls")));
        assert!(id.len() == 9 && pieces > 0, "{id} {pieces}");

        // In the second step of an agent, the client sends the result and the model answers.
        let messages = json!([
            { "role": "user", "content": "How is the weather?" },
            choice["message"],
            { "role": "tool", "tool_call_id": call["id"], "content": "It rains." },
        ]);
        let body = json!({ "messages": messages, "tools": [weather()], "temperature": 0, "max_tokens": 5 });
        let answer = served.client.post(CHAT, &body).json(200);
        assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
        assert!(answer["usage"]["prompt_tokens"].as_u64() > whole["usage"]["prompt_tokens"].as_u64());
    }
}

#[test]
fn tools_that_are_not_called_leave_the_answer_as_it_is() {
    let served = Served::new();
    let without = served.client.post(CHAT, &chat("Hi", json!({ "max_tokens": 9 }))).json(200);
    let none = json!({ "tools": [weather()], "tool_choice": "none", "max_tokens": 9 });
    let none = served.client.post(CHAT, &chat("Hi", none)).json(200);
    assert_eq!(none["choices"], without["choices"]);
    let auto = served.client.post(CHAT, &chat("Hi", json!({ "tools": [weather()], "max_tokens": 9 }))).json(200);
    assert!(auto["usage"]["prompt_tokens"].as_u64() > none["usage"]["prompt_tokens"].as_u64(), "definitions are told");
    let error = served.client.post(CHAT, &chat("Hi", json!({ "tool_choice": "required" }))).error(400);
    assert_eq!(error["param"], "tool_choice");
}

#[test]
fn answers_follow_schemas_patterns_and_grammars() {
    let served = Served::new();
    let schema = json!({
        "type": "object",
        "properties": { "name": { "enum": ["cat", "dog"] }, "legs": { "type": "integer", "minimum": 2, "maximum": 4 } },
        "required": ["name", "legs"],
        "additionalProperties": false,
    });
    let text = |format: Value, more: Value| {
        let mut body = chat("Which animal?", more);
        body["response_format"] = format;
        body["max_tokens"] = json!(100);
        let answer = served.client.post(CHAT, &body).json(200);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "animal", "strict": true, "schema": schema } });
    for seed in 0..4 {
        let said = text(format.clone(), json!({ "temperature": 1.5, "seed": seed }));
        let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert!(value["name"] == "cat" || value["name"] == "dog", "{said}");
        assert!((2..=4).contains(&value["legs"].as_i64().unwrap()), "{said}");
    }
    let said = text(json!({ "type": "regex", "pattern": "[0-9]{3}-[a-f]{2}" }), json!({}));
    assert!(said.len() == 6 && said.as_bytes()[3] == b'-' && said[..3].bytes().all(|c| c.is_ascii_digit()), "{said}");
    let lark = "start: animal \" and \" animal\nanimal: \"cat\" | \"dog\"";
    let said = text(json!({ "type": "grammar", "grammar": lark }), json!({}));
    assert!(["cat and cat", "cat and dog", "dog and cat", "dog and dog"].contains(&&*said), "{said}");
}

#[test]
fn grammars_of_other_servers_are_followed_also_where_neurons_are_skipped() {
    let served = Served::new();
    for mode in [Sparsity::Exact, Sparsity::Predicted] {
        served.engine.set_sparsity(SparsityChoice::Mode(mode)).unwrap();
        let text = |path: &str, more: Value| {
            let mut body = if path == CHAT { chat("Which animal?", more) } else { text("Once", more) };
            (body["max_tokens"], body["temperature"], body["seed"]) = (json!(60), json!(1.5), json!(3));
            let answer = served.client.post(path, &body).json(200);
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "stop", "{answer}");
            choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_owned()
        };
        let gbnf = "root ::= pet (\" and \" pet){0,2}\npet ::= \"cat\" | \"dog\"";
        let nested = "root ::= \"(\" root \")\" | [a-c]{1,3}";
        for path in [CHAT, TEXT] {
            let said = text(path, json!({ "grammar": gbnf }));
            assert!(said.split(" and ").all(|pet| ["cat", "dog"].contains(&pet)), "{said}");
            let said = text(path, json!({ "grammar": nested }));
            let inner = said.trim_matches(['(', ')']);
            let depth = said.matches('(').count();
            assert_eq!(said, format!("{}{inner}{}", "(".repeat(depth), ")".repeat(depth)));
            assert!((1..=3).contains(&inner.len()) && inner.bytes().all(|c| b"abc".contains(&c)), "{said}");
            assert_eq!(text(path, json!({ "guided_choice": ["a b", "a b"] })), "a b");
            let said = text(path, json!({ "structured_outputs": { "regex": "[0-9]{4}" } }));
            assert!(said.len() == 4 && said.parse::<u32>().is_ok(), "{said}");
            assert_eq!(text(path, json!({ "guided_json": { "const": true } })), "true");
        }
    }
    let error = served.client.post(CHAT, &chat("Hi", json!({ "grammar": "root ::= nothing" }))).error(400);
    assert!(error["message"].as_str().unwrap().contains("a rule called nothing"), "{error}");
}

#[test]
fn suffix_is_refused_where_the_vocabulary_cannot_fill_in() {
    let served = Served::new();
    let error = served.client.post(TEXT, &text("Once", json!({ "suffix": "end", "max_tokens": 2 }))).error(400);
    assert_eq!(error["param"], "suffix");
    served.client.post(TEXT, &text("Once", json!({ "suffix": "", "max_tokens": 2 }))).json(200);
}

#[test]
fn schemas_that_cannot_be_followed_are_refused_by_name() {
    let served = Served::new();
    for schema in [json!({ "type": "nonsense" }), json!({ "$ref": "http://example.org/schema" })] {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let error = served.client.post(CHAT, &chat("Hi", json!({ "response_format": format }))).error(400);
        assert_eq!(error["param"], "response_format", "{error}");
    }
    let fine = chat("Hi", json!({ "max_tokens": 3 }));
    served.client.post(CHAT, &fine).json(200);
}

/// Requests an answer without a word about the weather, in each form of structured output.
fn forms() -> Vec<Value> {
    let schema = json!({ "enum": ["nothing"] });
    vec![
        json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema } } }),
        json!({ "response_format": { "type": "json_object", "schema": schema } }),
        json!({ "guided_json": schema }),
        json!({ "guided_regex": "\"nothing\"" }),
        json!({ "guided_choice": ["\"nothing\""] }),
        json!({ "grammar": "root ::= \"\\\"nothing\\\"\"" }),
        json!({ "structured_outputs": { "json": schema } }),
    ]
}

#[test]
fn form_beside_tools_is_that_of_an_answer_without_a_call() {
    let served = Served::new();
    let folder = tempfile::tempdir().unwrap();
    let call = [
        "I look. ",
        "<tool_call>\n",
        "{\"name\": \"weather\", \"arguments\": ",
        "{\"city\": \"Ulm\"}}",
        "\n</tool_call>",
    ];
    for (pieces, calls) in [(&call[..], true), (&["No need ", "to look."], false)] {
        served.offers(Ok(offer("Parrot", &parrot(folder.path(), pieces))));
        for stream in [false, true] {
            for form in forms() {
                let mut body = chat("Weather?", form);
                (body["tools"], body["stream"]) = (json!([weather()]), json!(stream));
                let reply = served.client.post(CHAT, &body);
                let found = if stream { joined(&reply) } else { message_of(&reply.json(200)["choices"][0]) };
                let [content, name, reason] = found.each_ref().map(String::as_str);
                let wanted = if calls { ["I look.", "weather", "tool_calls"] } else { ["\"nothing\"", "", "stop"] };
                assert_eq!([content.trim(), name, reason], wanted, "{body}");
            }
        }
        let (schema, function) = (json!({ "enum": ["nothing"] }), weather()["function"].clone());
        let user = json!([{ "role": "user", "content": "Weather?" }]);
        let tool = json!({ "name": "weather", "input_schema": function["parameters"] });
        let format = json!({ "format": { "type": "json_schema", "schema": schema } });
        let body =
            json!({ "messages": user, "max_tokens": 60, "temperature": 0, "tools": [tool], "output_config": format });
        let answer = served.client.post("/v1/messages", &body).json(200);
        assert_eq!(answer["stop_reason"], if calls { "tool_use" } else { "end_turn" }, "{answer}");
        assert!(calls || answer["content"][0]["text"] == "\"nothing\"", "{answer}");
        let tool = json!({ "type": "function", "name": "weather", "parameters": function["parameters"] });
        let format = json!({ "format": { "type": "json_schema", "name": "n", "schema": schema } });
        let body = json!({ "input": "Weather?", "temperature": 0, "tools": [tool], "text": format });
        let answer = served.client.post("/v1/responses", &body).json(200);
        let last = answer["output"].as_array().unwrap().last().unwrap();
        assert_eq!(last["type"], if calls { "function_call" } else { "message" }, "{answer}");
        assert!(calls || last["content"][0]["text"] == "\"nothing\"", "{answer}");
        let options = json!({ "temperature": 0 });
        let body =
            json!({ "messages": user, "tools": [weather()], "format": schema, "stream": false, "options": options });
        let message = served.client.post("/api/chat", &body).json(200)["message"].clone();
        assert_eq!(message["tool_calls"][0]["function"]["name"] == "weather", calls, "{message}");
        assert!(calls || message["content"] == "\"nothing\"", "{message}");
    }
    let more = json!({ "tools": [weather()], "grammar": "start: nowhere" });
    assert_eq!(served.client.post(CHAT, &chat("Weather?", more)).error(400)["param"], "grammar");
}

/// Returns content, name of the first call and finish reason of a choice.
fn message_of(choice: &Value) -> [String; 3] {
    let message = &choice["message"];
    let parts = [&message["content"], &message["tool_calls"][0]["function"]["name"], &choice["finish_reason"]];
    parts.map(|part| part.as_str().unwrap_or_default().to_owned())
}

/// Does the same as [`message_of`] for a stream.
fn joined(reply: &Reply) -> [String; 3] {
    let mut joined = [String::new(), String::new(), String::new()];
    for event in reply.events() {
        let choice =
            json!({ "message": event["choices"][0]["delta"], "finish_reason": event["choices"][0]["finish_reason"] });
        message_of(&choice).iter().zip(&mut joined).for_each(|(part, all)| all.push_str(part));
    }
    joined
}
