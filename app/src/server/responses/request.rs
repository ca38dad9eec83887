//! Requests for responses, as bodies of chat completions.

use serde_json::{Map, Value, json};

use super::{
    input::ChatItems,
    store::ResponseStore,
    tools::{Namespaces, ResponseTools},
};
use crate::{
    server::{
        error::ApiError,
        json_fields::{JsonFields, invalid},
    },
    units::Limit,
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

/// Those that only a server that is not strict lets pass: hints of agents.
const HINTS: [&str; 5] = ["client_metadata", "context_management", "prompt_cache_options", "betas", "moderation"];

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
    /// Functions of namespaces.
    pub namespaces: Namespaces,
    /// Where each of the chat's tools is in the request.
    pub tool_paths: Vec<String>,
    /// Kinds and names of the tools that are left out.
    pub dropped: Vec<String>,
    /// Fields of the request that the response repeats.
    pub echoed: Map<String, Value>,
}

impl ResponseBody {
    /// An error of the chat's about a tool, as one about the request's.
    pub fn with_paths_of_tools(&self, error: ApiError) -> ApiError {
        // From the last to the first: none is renamed twice, as paths only move back.
        let paths = self.tool_paths.iter().enumerate().rev();
        paths.fold(error, |error, (at, path)| error.renamed(&format!("tools[{at}]"), path))
    }
}

/// Reads a request. What it continues is in `store`. A field that cannot be honoured is refused by name; if `strict`, hints and tools that
/// are no functions are, too.
pub fn response_body(body: &[u8], store: &ResponseStore, strict: bool) -> Result<ResponseBody, ApiError> {
    let mut fields = JsonFields::parse(body)?;
    let mut chat = Map::new();
    let previous = fields.string("previous_response_id")?;
    let before = match &previous {
        Some(id) => store.get(id).ok_or_else(|| ApiError::no_such_response(id))?.messages,
        None => Vec::new(),
    };
    let messages = read_input(fields.remove("input"), before, strict)?;
    let instructions = fields.string("instructions")?;
    let store = fields.boolean("store")?.unwrap_or(true);
    fields.accept_only("background", &[json!(false)])?;
    fields.accept_only("truncation", &[json!("disabled"), json!("auto")])?;
    fields.accept_only("top_logprobs", &[json!(0)])?;
    let most = fields.limit("max_output_tokens", strict)?;
    chat.extend(most.map(|most| ("max_tokens".to_owned(), most.count().map_or(json!(-1), Value::from))));

    let mut echoed = Map::new();
    for field in SAME {
        if let Some(value) = fields.remove(field) {
            echoed.insert(field.to_owned(), value.clone());
            chat.insert(field.to_owned(), value);
        }
    }
    ["model", "stream", "chat_template_kwargs"].iter().for_each(|field| drop(echoed.remove(*field)));
    let tools = fields.remove("tools").unwrap_or_else(|| json!([]));
    let mut read = ResponseTools::read(&tools, strict)?;
    let choice = fields.remove("tool_choice").unwrap_or_else(|| json!("auto"));
    chat.insert("tool_choice".to_owned(), read.choose(&choice)?);
    chat.insert("tools".to_owned(), std::mem::take(&mut read.definitions).into());
    let text = fields.remove("text").unwrap_or_else(|| json!({ "format": { "type": "text" } }));
    chat.extend(read_text_format(text.clone())?.map(|format| ("response_format".to_owned(), format)));
    let reasoning = fields.remove("reasoning").unwrap_or_else(|| json!({ "effort": null, "summary": null }));
    chat.extend(read_reasoning(reasoning.clone())?.map(|reasoning| ("reasoning".to_owned(), reasoning)));
    fields.ignore(&IGNORED);
    if !strict {
        fields.ignore(&HINTS);
    }
    fields.finish()?;

    let system = instructions.as_ref().map(|text| json!({ "role": "system", "content": text }));
    chat.insert("messages".to_owned(), system.into_iter().chain(messages.iter().cloned()).collect());
    for (field, value) in [
        ("instructions", json!(instructions)),
        ("previous_response_id", json!(previous)),
        ("store", json!(store)),
        ("max_output_tokens", json!(most.and_then(Limit::count))),
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
    let ResponseTools { namespaces, paths: tool_paths, dropped, .. } = read;
    Ok(ResponseBody { fields: chat, messages, store, namespaces, tool_paths, dropped, echoed })
}

/// The messages of `before` and of `input`: a text of the user, or items.
fn read_input(input: Option<Value>, before: Vec<Value>, strict: bool) -> Result<Vec<Value>, ApiError> {
    let mut items = ChatItems::after(before, strict);
    match input {
        Some(Value::String(text)) => items.messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(list)) => {
            for (at, item) in list.into_iter().enumerate() {
                items.push(item, &format!("input[{at}]"))?;
            }
        }
        None => return Err(ApiError::invalid_field("input", "input: expected a text or items, got none")),
        Some(other) => return Err(invalid("input", "a string or a list of items", &other)),
    }
    Ok(items.messages)
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
    fields.ignore(&["context"]);
    let (effort, most) = (fields.string("effort")?, fields.count("max_tokens")?);
    fields.finish()?;
    Ok((effort.is_some() || most.is_some()).then(|| json!({ "effort": effort, "max_tokens": most })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::responses::store::StoredResponse;

    fn read(body: Value, store: &ResponseStore) -> Result<ResponseBody, String> {
        response_body(body.to_string().as_bytes(), store, false).map_err(|error| error.message)
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
    fn hints_pass_unless_the_server_is_strict() {
        let body = json!({ "input": "a", "client_metadata": { "origin": "cli" }, "max_output_tokens": -1 });
        let read = read(body.clone(), &ResponseStore::default()).unwrap();
        assert_eq!((&read.fields["max_tokens"], &read.echoed["max_output_tokens"]), (&json!(-1), &Value::Null));
        let error = response_body(body.to_string().as_bytes(), &ResponseStore::default(), true).unwrap_err();
        assert!(error.message.contains("max_output_tokens"), "{error:?}");
        let body = json!({ "input": "a", "client_metadata": {  "origin": "cli" } }).to_string();
        let error = response_body(body.as_bytes(), &ResponseStore::default(), true).unwrap_err();
        assert!(error.message.contains("client_metadata"), "{error:?}");
    }

    #[test]
    fn errors_name_the_field() {
        for (body, says) in [
            (json!({}), "input: expected a text or items"),
            (json!({ "input": 7 }), "input: expected a string or a list"),
            (json!({ "input": "a", "warp": 1 }), "`warp` is not supported"),
            (json!({ "input": "a", "background": true }), "background: expected false"),
            (json!({ "input": "a", "conversation": "c" }), "`conversation` is not supported"),
            (json!({ "input": "a", "tools": [{ "name": "f" }] }), "tools[0].type: expected function"),
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
