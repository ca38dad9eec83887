//! Requests for responses, as bodies of chat completions.

use serde_json::{Map, Value, json};

use super::store::ResponseStore;
use crate::server::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Fields that change nothing about an answer.
const IGNORED: [&str; 9] = [
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
    "include",
    "max_tool_calls",
    "stream_options",
];

/// Fields of the same name and meaning in a chat's body.
const SAME: [&str; 7] =
    ["model", "stream", "temperature", "top_p", "parallel_tool_calls", "seed", "chat_template_kwargs"];

/// A request as a chat's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResponseBody {
    /// The chat's fields.
    pub fields: Map<String, Value>,
    /// The conversation without the instructions, which later requests do not inherit.
    pub messages: Vec<Value>,
    /// The response may be continued.
    pub store: bool,
    /// Fields of the request that the response repeats.
    pub echoed: Map<String, Value>,
}

/// Reads a request. What it continues is in `store`. A field that cannot be honoured is refused by name.
pub fn response_body(body: &[u8], store: &ResponseStore) -> Result<ResponseBody, ApiError> {
    let mut fields = JsonFields::parse(body)?;
    let mut chat = Map::new();
    let previous = fields.string("previous_response_id")?;
    let mut items = ChatItems::default();
    if let Some(id) = &previous {
        items.messages = store.get(id).ok_or_else(|| ApiError::no_such_response(id))?.messages;
    }
    match fields.remove("input") {
        Some(Value::String(text)) => items.messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(list)) => {
            for (at, item) in list.into_iter().enumerate() {
                items.push(item, &format!("input[{at}]"))?;
            }
        }
        None => return Err(ApiError::invalid_field("input", "input: expected a text or items, got none")),
        Some(other) => return Err(invalid("input", "a string or a list of items", &other)),
    }
    let instructions = fields.string("instructions")?;
    let store = fields.boolean("store")?.unwrap_or(true);
    fields.accept_only("background", &[json!(false)])?;
    fields.accept_only("truncation", &[json!("disabled"), json!("auto")])?;
    fields.accept_only("top_logprobs", &[json!(0)])?;
    let max_tokens = fields.count("max_output_tokens")?;
    chat.extend(max_tokens.map(|count| ("max_tokens".to_owned(), count.into())));

    let mut echoed = Map::new();
    for field in SAME {
        if let Some(value) = fields.remove(field) {
            echoed.insert(field.to_owned(), value.clone());
            chat.insert(field.to_owned(), value);
        }
    }
    ["model", "stream", "chat_template_kwargs"].iter().for_each(|field| drop(echoed.remove(*field)));
    let tools = fields.remove("tools").unwrap_or_else(|| json!([]));
    chat.insert("tools".to_owned(), read_tools(&tools)?);
    let choice = fields.remove("tool_choice").unwrap_or_else(|| json!("auto"));
    chat.insert("tool_choice".to_owned(), read_tool_choice(&choice)?);
    let text = fields.remove("text").unwrap_or_else(|| json!({ "format": { "type": "text" } }));
    chat.extend(read_text_format(text.clone())?.map(|format| ("response_format".to_owned(), format)));
    let reasoning = fields.remove("reasoning").unwrap_or_else(|| json!({ "effort": null, "summary": null }));
    chat.extend(read_reasoning(reasoning.clone())?.map(|reasoning| ("reasoning".to_owned(), reasoning)));
    IGNORED.iter().for_each(|field| drop(fields.remove(field)));
    fields.finish()?;

    let messages = items.messages;
    let system = instructions.as_ref().map(|text| json!({ "role": "system", "content": text }));
    chat.insert("messages".to_owned(), system.into_iter().chain(messages.iter().cloned()).collect());
    for (field, value) in [
        ("instructions", json!(instructions)),
        ("previous_response_id", json!(previous)),
        ("store", json!(store)),
        ("max_output_tokens", json!(max_tokens)),
        ("tools", tools),
        ("tool_choice", choice),
        ("text", text),
        ("reasoning", reasoning),
        ("truncation", json!("disabled")),
        ("metadata", json!({})),
    ] {
        echoed.insert(field.to_owned(), value);
    }
    for (field, value) in [("parallel_tool_calls", json!(true)), ("temperature", Value::Null), ("top_p", Value::Null)] {
        echoed.entry(field).or_insert(value);
    }
    Ok(ResponseBody { fields: chat, messages, store, echoed })
}

/// The messages that items say.
#[derive(Debug, Default)]
struct ChatItems {
    messages: Vec<Value>,
    /// Reasoning of the assistant's next message.
    reasoning: String,
}

impl ChatItems {
    fn push(&mut self, item: Value, path: &str) -> Result<(), ApiError> {
        let mut fields = JsonFields::from_value(item, path)?;
        let kind = fields.string("type")?;
        ["id", "status"].iter().for_each(|field| drop(fields.remove(field)));
        match kind.as_deref() {
            None | Some("message") => self.push_message(fields),
            Some("function_call") => {
                let id = required(&mut fields, "call_id")?;
                let function = json!({
                    "name": required(&mut fields, "name")?,
                    "arguments": fields.string("arguments")?.unwrap_or_default(),
                });
                fields.finish()?;
                let call = json!({ "id": id, "type": "function", "function": function });
                match self.assistant()["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => self.assistant()["tool_calls"] = json!([call]),
                }
                Ok(())
            }
            Some("function_call_output") => {
                let id = required(&mut fields, "call_id")?;
                let path = fields.path("output");
                let output = plain_text(fields.remove("output").unwrap_or_default(), &path)?;
                fields.finish()?;
                self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
                Ok(())
            }
            Some("reasoning") => {
                // What is encrypted was not encrypted here.
                ["encrypted_content", "summary"].iter().for_each(|field| drop(fields.remove(field)));
                let path = fields.path("content");
                if let Some(content) = fields.remove("content") {
                    self.reasoning += &plain_text(content, &path)?;
                }
                fields.finish()
            }
            Some(other) => {
                let expected = "message, function_call, function_call_output or reasoning";
                Err(invalid(&fields.path("type"), expected, &other.into()))
            }
        }
    }

    fn push_message(&mut self, mut fields: JsonFields) -> Result<(), ApiError> {
        let role = required(&mut fields, "role")?;
        let path = fields.path("content");
        let content = fields.remove("content").unwrap_or_else(|| json!(""));
        fields.remove("phase");
        fields.finish()?;
        let content = plain_text(content, &path)?;
        if role == "assistant" {
            self.messages.push(json!({ "role": role, "content": content }));
            self.take_reasoning();
        } else {
            self.messages.push(json!({ "role": role, "content": content }));
        }
        Ok(())
    }

    /// The assistant's message that calls belong to: the last one, or a new one.
    fn assistant(&mut self) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.messages.push(json!({ "role": "assistant", "content": "" }));
            self.take_reasoning();
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn take_reasoning(&mut self) {
        let reasoning = std::mem::take(&mut self.reasoning);
        if let Some(last) = self.messages.last_mut().filter(|_| !reasoning.is_empty()) {
            last["reasoning_content"] = reasoning.into();
        }
    }
}

/// A string that has to be there.
fn required(fields: &mut JsonFields, field: &str) -> Result<String, ApiError> {
    let path = fields.path(field);
    fields.string(field)?.ok_or_else(|| invalid(&path, "a string", &Value::Null))
}

/// The text of a string or of a list of parts.
fn plain_text(value: Value, path: &str) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(invalid(path, "a string or a list of parts", &other)),
    };
    let text = |(at, part): (usize, Value)| {
        let mut part = JsonFields::from_value(part, &format!("{path}[{at}]"))?;
        let kind = part.string("type")?.unwrap_or_default();
        let field = match &*kind {
            "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => "text",
            "refusal" => "refusal",
            _ => {
                return Err(invalid(
                    &part.path("type"),
                    "input_text or output_text (nothing else can be read)",
                    &kind.into(),
                ));
            }
        };
        let text = required(&mut part, field)?;
        ["annotations", "logprobs"].iter().for_each(|field| drop(part.remove(field)));
        part.finish()?;
        Ok(text)
    };
    Ok(parts.into_iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?.concat())
}

fn read_tools(tools: &Value) -> Result<Value, ApiError> {
    let Value::Array(tools) = tools else { return Err(invalid("tools", "a list of tools", tools)) };
    let tool = |(at, tool): (usize, &Value)| {
        let mut fields = JsonFields::from_value(tool.clone(), &format!("tools[{at}]"))?;
        let kind = fields.string("type")?;
        if kind.as_deref() != Some("function") {
            let expected = "function (the server has no tools of its own)";
            return Err(invalid(&fields.path("type"), expected, &kind.into()));
        }
        let function = json!({
            "name": fields.string("name")?,
            "description": fields.string("description")?,
            "parameters": fields.remove("parameters"),
            "strict": fields.boolean("strict")?,
        });
        fields.finish()?;
        Ok(json!({ "type": "function", "function": function }))
    };
    Ok(tools.iter().enumerate().map(tool).collect::<Result<Vec<_>, _>>()?.into())
}

fn read_tool_choice(choice: &Value) -> Result<Value, ApiError> {
    match (choice, choice["type"].as_str(), choice["name"].as_str()) {
        (Value::String(_), ..) => Ok(choice.clone()),
        (_, Some("function"), Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
        _ => Err(invalid("tool_choice", "none, auto, required, or a function with its name", choice)),
    }
}

fn read_text_format(text: Value) -> Result<Option<Value>, ApiError> {
    let mut text = JsonFields::from_value(text, "text")?;
    let verbosity = text.string("verbosity")?;
    if verbosity.as_deref().is_some_and(|it| !["low", "medium", "high"].contains(&it)) {
        return Err(invalid("text.verbosity", "low, medium or high", &verbosity.into()));
    }
    let format = text.remove("format");
    text.finish()?;
    let Some(format) = format else { return Ok(None) };
    let mut fields = JsonFields::from_value(format.clone(), "text.format")?;
    if fields.string("type")?.as_deref() != Some("json_schema") {
        return Ok(Some(format));
    }
    let schema = fields.remove("schema").ok_or_else(|| invalid("text.format.schema", "a JSON schema", &Value::Null))?;
    let (name, strict) = (fields.string("name")?, fields.boolean("strict")?);
    Ok(Some(json!({ "type": "json_schema", "json_schema": { "name": name, "schema": schema, "strict": strict } })))
}

fn read_reasoning(reasoning: Value) -> Result<Option<Value>, ApiError> {
    let mut fields = JsonFields::from_value(reasoning, "reasoning")?;
    ["summary", "generate_summary"].iter().for_each(|field| drop(fields.remove(field)));
    let (effort, most) = (fields.string("effort")?, fields.count("max_tokens")?);
    fields.finish()?;
    Ok((effort.is_some() || most.is_some()).then(|| json!({ "effort": effort, "max_tokens": most })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::responses::store::StoredResponse;

    fn read(body: Value, store: &ResponseStore) -> Result<ResponseBody, String> {
        response_body(body.to_string().as_bytes(), store).map_err(|error| error.message)
    }

    #[test]
    fn items_are_messages_of_a_chat() {
        let body = json!({
            "model": "m", "instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0.5, "stream": true,
            "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "h" }, { "type": "input_text", "text": "i" }] },
                { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }] },
                { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                  "content": [{ "type": "output_text", "text": "Let me see.", "annotations": [] }] },
                { "type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}" },
                { "type": "function_call", "call_id": "b", "name": "g", "arguments": "{\"x\":1}", "status": "completed" },
                { "type": "function_call_output", "call_id": "a", "output": "7" },
                { "type": "function_call_output", "call_id": "b", "output": [{ "type": "input_text", "text": "8" }] },
            ],
            "tools": [{ "type": "function", "name": "f", "description": "d", "parameters": { "type": "object" }, "strict": true }],
            "tool_choice": { "type": "function", "name": "f" }, "parallel_tool_calls": false,
            "text": { "format": { "type": "json_schema", "name": "n", "strict": true, "schema": { "type": "null" } } },
            "reasoning": { "effort": "low", "summary": "auto" }, "include": ["reasoning.encrypted_content"], "store": false,
        });
        let read = read(body, &ResponseStore::default()).unwrap();
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let messages = json!([
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.",
              "tool_calls": [call("a", "f", "{}"), call("b", "g", "{\"x\":1}")] },
            { "role": "tool", "tool_call_id": "a", "content": "7" },
            { "role": "tool", "tool_call_id": "b", "content": "8" },
        ]);
        assert_eq!((&json!(read.messages), read.store), (&messages, false));
        let fields = &read.fields;
        assert_eq!(fields["messages"][0], json!({ "role": "system", "content": "Be brief." }));
        assert_eq!(
            (&fields["max_tokens"], &fields["stream"], &fields["temperature"]),
            (&json!(9), &json!(true), &json!(0.5))
        );
        assert_eq!(fields["tools"][0]["function"]["name"], "f");
        assert_eq!(fields["tool_choice"], json!({ "type": "function", "function": { "name": "f" } }));
        assert_eq!(fields["response_format"]["json_schema"]["schema"], json!({ "type": "null" }));
        assert_eq!(fields["reasoning"], json!({ "effort": "low", "max_tokens": null }));
        assert_eq!(
            (&read.echoed["parallel_tool_calls"], &read.echoed["tools"][0]["name"]),
            (&json!(false), &json!("f"))
        );
    }

    #[test]
    fn previous_response_comes_first_without_its_instructions() {
        let store = ResponseStore::default();
        let messages = vec![json!({ "role": "user", "content": "a" }), json!({ "role": "assistant", "content": "b" })];
        store.insert(StoredResponse { id: "resp_1".to_owned(), messages, response: json!({}) });
        let body = read(json!({ "input": "c", "previous_response_id": "resp_1" }), &store).unwrap();
        let texts: Vec<&Value> = body.messages.iter().map(|message| &message["content"]).collect();
        assert_eq!(texts, ["a", "b", "c"]);
        let error = read(json!({ "input": "c", "previous_response_id": "resp_2" }), &store).unwrap_err();
        assert!(error.contains("resp_2"), "{error}");
    }

    #[test]
    fn errors_name_the_field() {
        for (body, says) in [
            (json!({}), "input: expected a text or items"),
            (json!({ "input": 7 }), "input: expected a string or a list"),
            (json!({ "input": "a", "warp": 1 }), "`warp` is not supported"),
            (json!({ "input": "a", "background": true }), "background: expected false"),
            (json!({ "input": "a", "conversation": "c" }), "`conversation` is not supported"),
            (json!({ "input": "a", "tools": [{ "type": "web_search" }] }), "tools[0].type: expected function"),
            (json!({ "input": "a", "tool_choice": { "type": "mcp" } }), "tool_choice: expected none"),
            (json!({ "input": "a", "text": { "format": { "type": "json_schema" } } }), "text.format.schema: expected"),
            (json!({ "input": [{ "type": "item_reference" }] }), "input[0].type: expected message"),
            (json!({ "input": [{ "content": "a" }] }), "input[0].role: expected a string"),
            (
                json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
                "input[0].content[0].type",
            ),
            (json!({ "input": [{ "type": "function_call", "name": "f" }] }), "input[0].call_id: expected"),
        ] {
            let error = read(body, &ResponseStore::default()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
