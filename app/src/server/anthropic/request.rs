//! Requests for messages, as bodies of OpenAI's chat completions.

use serde_json::{Map, Value, json};

use super::answer_fields::{read_format, read_thinking};
use crate::{
    server::{
        error::ApiError,
        json_fields::{JsonFields, invalid},
    },
    units::Limit,
};

/// Fields that change nothing about an answer.
const IGNORED: [&str; 2] = ["metadata", "service_tier"];

/// Those that only a server that is not strict lets pass: hints of agents.
const HINTS: [&str; 6] = ["context_management", "cache_control", "inference_geo", "speed", "betas", "diagnostics"];

/// Likewise, of a tool.
const TOOL_HINTS: [&str; 5] = ["eager_input_streaming", "defer_loading", "input_examples", "allowed_callers", "title"];

/// Fields of a thinking block and of a call that change nothing; the second is a hint.
const THOUGHT_FIELDS: [&str; 2] = ["signature", "cache_control"];
const CALL_FIELDS: [&str; 2] = ["cache_control", "caller"];

/// Beginning of the line that agents put before their system prompt.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// A request in OpenAI's form.
#[derive(Debug, PartialEq)]
pub struct MessageBody {
    /// Its fields.
    pub fields: Map<String, Value>,
    /// Name of the field that says the format of the answer.
    pub format_field: &'static str,
}

/// The body of OpenAI's that asks for what `body` asks for. `max_tokens` may be missing where tokens are only counted. A field that cannot
/// be honoured is refused by name; hints are, too, if `strict`.
pub fn chat_body(body: &[u8], only_counts: bool, strict: bool) -> Result<MessageBody, ApiError> {
    let mut fields = JsonFields::parse(body)?;
    let mut chat = Map::new();
    match fields.limit("max_tokens", strict)? {
        Some(Limit::Of(most @ 1..)) => chat.insert("max_tokens".to_owned(), most.into()),
        Some(Limit::None) => chat.insert("max_tokens".to_owned(), json!(-1)),
        None if only_counts => None,
        zero => {
            let got = if zero.is_none() { "none" } else { "0" };
            let message = format!("max_tokens: expected a number of at least 1, got {got}");
            return Err(ApiError::invalid_field("max_tokens", message));
        }
    };
    for (field, name) in [
        ("model", "model"),
        ("stream", "stream"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("stop_sequences", "stop"),
    ] {
        chat.extend(fields.remove(field).map(|value| (name.to_owned(), value)));
    }
    let mut messages = Vec::new();
    if let Some(mut system) = fields.remove("system") {
        let billed = !strict && remove_billing_line(&mut system);
        let text = plain_text(system, "system")?;
        if !(billed && text.is_empty()) {
            messages.push(json!({ "role": "system", "content": text }));
        }
    }
    match fields.remove("messages") {
        Some(Value::Array(list)) => {
            for (at, message) in list.into_iter().enumerate() {
                read_message(message, &format!("messages[{at}]"), strict, &mut messages)?;
            }
        }
        None => return Err(ApiError::invalid_field("messages", "messages: expected at least one message, got none")),
        Some(other) => return Err(invalid("messages", "a list of messages", &other)),
    }
    chat.insert("messages".to_owned(), messages.into());
    if let Some(tools) = fields.remove("tools") {
        let Value::Array(tools) = tools else { return Err(invalid("tools", "a list of tools", &tools)) };
        let tools = tools.into_iter().enumerate().map(|(at, tool)| read_tool(tool, &format!("tools[{at}]"), strict));
        chat.insert("tools".to_owned(), tools.collect::<Result<Vec<_>, _>>()?.into());
    }
    if let Some(choice) = fields.remove("tool_choice") {
        chat.insert("tool_choice".to_owned(), read_tool_choice(choice)?);
    }
    if let Some(thinking) = fields.remove("thinking") {
        read_thinking(thinking, strict, &mut chat)?;
    }
    let format_field = read_format(&mut fields, strict, &mut chat)?;
    fields.ignore(&IGNORED);
    if !strict {
        fields.ignore(&HINTS);
    }
    fields.finish()?;
    Ok(MessageBody { fields: chat, format_field })
}

/// Removes the first line of a system prompt if it is an agent's billing header; `false` if it is not. The header changes with every turn,
/// so that nothing behind it could be reused.
fn remove_billing_line(system: &mut Value) -> bool {
    let first = match system {
        Value::Array(blocks) => {
            let mut texts = blocks.iter_mut().filter_map(|block| block.get_mut("text"));
            texts.find(|text| text.as_str() != Some(""))
        }
        text => Some(text),
    };
    let Some(Value::String(text)) = first else { return false };
    let billed = text.get(..BILLING_HEADER.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(BILLING_HEADER));
    if billed {
        let end = text.find('\n').map_or(text.len(), |at| at + 1);
        text.drain(..end);
    }
    billed
}

/// The text of a string or of a list of text blocks.
fn plain_text(value: Value, path: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let texts = blocks.into_iter().enumerate().map(|(at, block)| {
                let path = format!("{path}[{at}]");
                let mut block = JsonFields::from_value(block, &path)?;
                let kind = block.string("type")?;
                if kind.as_deref() != Some("text") {
                    return Err(invalid(&block.path("type"), "text (nothing else can be read)", &kind.into()));
                }
                read_text(block)
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.concat())
        }
        other => Err(invalid(path, "a string or a list of text blocks", &other)),
    }
}

/// The text of a text block of which `type` has been read.
fn read_text(mut block: JsonFields) -> Result<String, ApiError> {
    let path = block.path("text");
    let text = block.remove("text");
    ["cache_control", "citations"].iter().for_each(|field| drop(block.remove(field)));
    block.finish()?;
    match text {
        Some(Value::String(text)) => Ok(text),
        other => Err(invalid(&path, "a string", &other.unwrap_or_default())),
    }
}

/// Adds the messages of OpenAI's that say what a message says: results of tools are messages of their own.
fn read_message(message: Value, path: &str, strict: bool, into: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut fields = JsonFields::from_value(message, path)?;
    let role = fields.string("role")?.unwrap_or_default();
    if !["user", "assistant", "system"].contains(&&*role) {
        return Err(invalid(&fields.path("role"), "user, assistant or system", &role.into()));
    }
    let path = fields.path("content");
    let content = fields.remove_even_empty("content");
    if !strict {
        fields.ignore(&["id"]);
    }
    fields.finish()?;
    let blocks = match content {
        Some(Value::String(text)) => {
            into.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Some(Value::Array(blocks)) if role == "assistant" || !blocks.is_empty() => blocks,
        other => return Err(invalid(&path, "a string or a list of content blocks", &other.unwrap_or_default())),
    };
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for (at, block) in blocks.into_iter().enumerate() {
        let mut block = JsonFields::from_value(block, &format!("{path}[{at}]"))?;
        let kind = block.string("type")?.unwrap_or_default();
        match (&*kind, &*role) {
            ("text", _) => text += &read_text(block)?,
            ("thinking", "assistant") => {
                thoughts += &block.string("thinking")?.unwrap_or_default();
                block.ignore(if strict { &THOUGHT_FIELDS[..1] } else { &THOUGHT_FIELDS });
                block.finish()?;
            }
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let (id, name) = (block.string("id")?, block.string("name")?);
                let input = block.remove("input").unwrap_or_else(|| json!({}));
                block.ignore(if strict { &CALL_FIELDS[..1] } else { &CALL_FIELDS });
                block.finish()?;
                let function = json!({ "name": name, "arguments": input.to_string() });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            ("tool_result", "user") => {
                let id = block.string("tool_use_id")?;
                let path = block.path("content");
                let content = block.remove("content").unwrap_or_else(|| json!(""));
                let failed = block.boolean("is_error")?.unwrap_or(false);
                block.remove("cache_control");
                block.finish()?;
                let content = plain_text(content, &path)?;
                let content = if failed { format!("Error: {content}") } else { content };
                into.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            _ => {
                let expected = match &*role {
                    "user" => "text or tool_result (nothing else can be read)",
                    "system" => "text",
                    _ => "text, thinking or tool_use",
                };
                return Err(invalid(&block.path("type"), expected, &kind.into()));
            }
        }
    }
    if role != "assistant" && text.is_empty() {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": text });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    into.push(message);
    Ok(())
}

fn read_tool(tool: Value, path: &str, strict: bool) -> Result<Value, ApiError> {
    let mut fields = JsonFields::from_value(tool, path)?;
    let kind = fields.string("type")?;
    if kind.as_deref().is_some_and(|kind| kind != "custom") {
        return Err(invalid(&fields.path("type"), "custom (the server has no tools of its own)", &kind.into()));
    }
    let mut function = json!({
        "name": fields.string("name")?,
        "description": fields.string("description")?,
        "parameters": fields.remove("input_schema"),
    });
    fields.ignore(&["cache_control"]);
    if !strict {
        fields.ignore(&TOOL_HINTS);
        if fields.boolean("strict")? == Some(true) {
            function["strict"] = true.into();
        }
    }
    fields.finish()?;
    Ok(json!({ "type": "function", "function": function }))
}

fn read_tool_choice(choice: Value) -> Result<Value, ApiError> {
    let mut fields = JsonFields::from_value(choice, "tool_choice")?;
    let (kind, name) = (fields.string("type")?.unwrap_or_default(), fields.string("name")?);
    // Calls are made one at a time where one is forced.
    fields.boolean("disable_parallel_tool_use")?;
    fields.finish()?;
    match (&*kind, name) {
        ("auto" | "none", None) => Ok(kind.into()),
        ("any", None) => Ok("required".into()),
        ("tool", Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
        _ => Err(invalid("tool_choice.type", "auto, any, none, or tool with a name", &kind.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Value, String> {
        let body = chat_body(body.to_string().as_bytes(), false, false);
        body.map(|body| Value::Object(body.fields)).map_err(|error| error.message)
    }

    #[test]
    fn chat_body_has_system_calls_and_results_as_messages_of_their_own() {
        let body = json!({
            "model": "claude", "max_tokens": 9, "stop_sequences": ["x"], "metadata": { "user_id": "a" },
            "system": [{ "type": "text", "text": "Be ", "cache_control": { "type": "ephemeral" } }, { "type": "text", "text": "brief." }],
            "messages": [
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "Hm.", "signature": "s" },
                    { "type": "text", "text": "Let me see." },
                    { "type": "tool_use", "id": "a", "name": "f", "input": { "x": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "7" }] },
                    { "type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": true },
                    { "type": "text", "text": "So?" },
                ] },
            ],
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
            "thinking": { "type": "enabled", "budget_tokens": 2000 },
        });
        let call = json!({ "id": "a", "type": "function", "function": { "name": "f", "arguments": "{\"x\":1}" } });
        let tool = json!({ "name": "f", "description": "d", "parameters": { "type": "object" } });
        let wanted = json!({
            "model": "claude", "max_tokens": 9, "stop": ["x"],
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "a", "content": "7" },
                { "role": "tool", "tool_call_id": "b", "content": "Error: no" },
                { "role": "user", "content": "So?" },
            ],
            "tools": [{ "type": "function", "function": tool }],
            "tool_choice": { "type": "function", "function": { "name": "f" } },
            "chat_template_kwargs": { "enable_thinking": true },
            "reasoning": { "max_tokens": 2000 },
        });
        assert_eq!(read(body), Ok(wanted));
    }

    #[test]
    fn billing_line_before_the_system_prompt_is_left_out_unless_strict() {
        let line = "x-anthropic-billing-header: cc_version=2.1.0; cch=0a1b2;";
        let block = |text: &str| json!({ "type": "text", "text": text });
        let read = |system: &Value, strict: bool| {
            let user = json!([{ "role": "user", "content": "a" }]);
            let body = json!({ "max_tokens": 9, "messages": user, "system": system }).to_string();
            let messages = chat_body(body.as_bytes(), false, strict).unwrap().fields["messages"].clone();
            (messages[0]["role"] == "system").then(|| messages[0]["content"].as_str().unwrap().to_owned())
        };
        for (system, wanted) in [
            (json!([block(line), block("Be brief.")]), Some("Be brief.")),
            (json!([block(""), block(&format!("{line}\nBe brief."))]), Some("Be brief.")),
            (json!(format!("{line}\nBe brief.\n{line}")), Some(&*format!("Be brief.\n{line}"))),
            (json!(line), None),
            (json!(format!("Be brief.\n{line}")), Some(&*format!("Be brief.\n{line}"))),
            (json!(""), Some("")),
        ] {
            assert_eq!(read(&system, false).as_deref(), wanted, "{system}");
        }
        assert_eq!(read(&json!(line), true).as_deref(), Some(line));
    }

    #[test]
    fn systems_among_messages_formats_and_empty_answers_are_passed_on() {
        let schema = json!({ "type": "null" });
        let format = json!({ "type": "json_schema", "schema": schema });
        let body = json!({
            "max_tokens": 9, "output_config": { "effort": "low", "format": format },
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": [] },
                { "role": "system", "content": [{ "type": "text", "text": "b", "cache_control": {} }] },
                { "role": "system", "content": "c" },
            ],
        });
        let read = read(body).unwrap();
        let messages = json!([
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": "" },
            { "role": "system", "content": "b" },
            { "role": "system", "content": "c" },
        ]);
        assert_eq!((&read["messages"], &read["response_format"]["json_schema"]["schema"]), (&messages, &schema));
        let user = json!([{ "role": "user", "content": "a" }]);
        let old = json!({ "max_tokens": 9, "messages": user, "output_format": format }).to_string();
        let body = chat_body(old.as_bytes(), false, false).unwrap();
        assert_eq!(body.fields["response_format"]["json_schema"]["schema"], schema);
        assert_eq!((body.format_field, chat_body(old.as_bytes(), false, true).is_err()), ("output_format", true));
    }

    #[test]
    fn chat_body_errors_name_the_field() {
        let user = |content: Value| json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": content }] });
        let with = |field: &str, value: Value| {
            let mut body = user(json!("hi"));
            body[field] = value;
            body
        };
        for (body, says) in [
            (json!({ "messages": [] }), "max_tokens: expected a number of at least 1, got none"),
            (with("max_tokens", json!(0)), "max_tokens: expected a number of at least 1, got 0"),
            (with("container", json!("c")), "`container` is not supported"),
            (with("messages", json!([])), "messages: expected at least one message"),
            (
                with("messages", json!([{ "role": "tool", "content": "a" }])),
                "messages[0].role: expected user, assistant or",
            ),
            (
                with("messages", json!([{ "role": "system", "content": [{ "type": "image" }] }])),
                "[0].type: expected text, got",
            ),
            (
                with("messages", json!([{ "role": "user", "content": [] }])),
                "messages[0].content: expected a string or a list of content blocks, got []",
            ),
            (with("output_format", json!({ "type": "xml" })), "output_format.type: expected json_schema"),
            (
                with("output_config", json!({ "format": { "type": "json_schema" } })),
                "output_config.format.schema: expected",
            ),
            (with("system", json!(7)), "system: expected a string"),
            (with("tools", json!([{ "type": "web_search_20250305", "name": "w" }])), "tools[0].type: expected custom"),
            (with("tool_choice", json!({ "type": "tool" })), "tool_choice.type: expected auto"),
            (with("thinking", json!({ "type": "maybe" })), "thinking.type: expected enabled"),
            (user(json!([{ "type": "image", "source": {} }])), "messages[0].content[0].type: expected text or"),
            (user(json!([{ "type": "text" }])), "messages[0].content[0].text: expected a string"),
            (user(json!(null)), "messages[0].content: expected a string"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
