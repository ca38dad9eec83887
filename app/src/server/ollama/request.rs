//! Requests for chats and texts, as bodies of OpenAI's.

use serde_json::{Map, Value, json};

use crate::{
    server::{
        error::ApiError,
        json_fields::{JsonFields, invalid},
        request::Endpoint,
    },
    units::Seed,
};

/// Fields that change nothing about an answer.
const IGNORED: [&str; 3] = ["keep_alive", "truncate", "shift"];

/// Options of the same name and meaning as fields of OpenAI's bodies here.
const SAME: [&str; 10] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "stop",
];

/// Options about how a model is loaded, which the server's own command line decides.
const LOADING: [&str; 11] = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_keep",
    "numa",
    "low_vram",
    "use_mmap",
    "use_mlock",
    "penalize_newline",
];

/// A request in OpenAI's form.
#[derive(Debug, PartialEq)]
pub struct OllamaBody {
    /// Its fields; `None` for a request without a prompt, which asks that the model be loaded.
    pub fields: Option<Map<String, Value>>,
    /// The form of them.
    pub endpoint: Endpoint,
}

/// The body that asks for what a body of `/api/chat` asks for.
pub fn chat_body(body: &[u8]) -> Result<OllamaBody, ApiError> {
    let mut fields = JsonFields::parse(body)?;
    let mut out = common(&mut fields)?;
    if let Some(tools) = fields.remove("tools") {
        out.insert("tools".to_owned(), tools);
    }
    let list = match fields.remove("messages") {
        None => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(invalid("messages", "a list of messages", &other)),
    };
    fields.finish()?;
    let messages = list.into_iter().enumerate().map(|(at, it)| read_message(it, &format!("messages[{at}]")));
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    let empty = messages.is_empty();
    out.insert("messages".to_owned(), messages.into());
    Ok(OllamaBody { fields: (!empty).then_some(out), endpoint: Endpoint::Chat })
}

/// The body that asks for what a body of `/api/generate` asks for: a chat of one message, or with `raw` a text to continue.
pub fn generate_body(body: &[u8]) -> Result<OllamaBody, ApiError> {
    let mut fields = JsonFields::parse(body)?;
    let mut out = common(&mut fields)?;
    let (prompt, system) = (fields.string("prompt")?.unwrap_or_default(), fields.string("system")?);
    let raw = fields.boolean("raw")?.unwrap_or(false);
    let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
    fields.accept_only("template", &[json!("")])?;
    fields.finish()?;
    let empty = prompt.is_empty();
    let endpoint = if raw || suffix.is_some() {
        if let Some(field) = ["chat_template_kwargs", "reasoning_effort"].iter().find(|field| out.contains_key(**field))
        {
            let message = format!("think: expected none where no chat is asked for, got {field}");
            return Err(ApiError::invalid_field("think", message));
        }
        out.extend(suffix.map(|suffix| ("suffix".to_owned(), suffix.into())));
        out.insert("prompt".to_owned(), prompt.into());
        Endpoint::Completion
    } else {
        let system = system.filter(|text| !text.is_empty()).map(|text| json!({ "role": "system", "content": text }));
        let user = json!({ "role": "user", "content": prompt });
        out.insert("messages".to_owned(), system.into_iter().chain([user]).collect());
        Endpoint::Chat
    };
    Ok(OllamaBody { fields: (!empty).then_some(out), endpoint })
}

/// The body of `/v1/embeddings` that asks for what a body of `/api/embed` asks for.
pub fn embed_body(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let mut fields = JsonFields::parse(body)?;
    let truncates = fields.boolean("truncate")?.unwrap_or(true);
    embedding_fields(fields, "input", truncates)
}

/// The same of a body of `/api/embeddings`, which has one text.
pub fn embedding_body(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    embedding_fields(JsonFields::parse(body)?, "prompt", true)
}

fn embedding_fields(mut fields: JsonFields, texts: &str, truncates: bool) -> Result<Map<String, Value>, ApiError> {
    let mut out = Map::from_iter([("truncate".to_owned(), truncates.into())]);
    for (field, name) in [("model", "model"), (texts, "input"), ("dimensions", "dimensions")] {
        out.extend(fields.remove(field).map(|value| (name.to_owned(), value)));
    }
    ["options", "keep_alive"].iter().for_each(|field| drop(fields.remove(field)));
    fields.finish()?;
    Ok(out)
}

/// The fields that both kinds of requests have.
fn common(fields: &mut JsonFields) -> Result<Map<String, Value>, ApiError> {
    let mut out = Map::new();
    out.extend(fields.remove("model").map(|name| ("model".to_owned(), name)));
    out.insert("stream".to_owned(), fields.boolean("stream")?.unwrap_or(true).into());
    match fields.remove("format") {
        None => {}
        Some(Value::String(word)) if word.is_empty() => {}
        Some(Value::String(word)) if word == "json" => {
            out.insert("response_format".to_owned(), json!({ "type": "json_object" }));
        }
        Some(schema @ Value::Object(_)) => {
            let schema = json!({ "name": "format", "schema": schema });
            out.insert("response_format".to_owned(), json!({ "type": "json_schema", "json_schema": schema }));
        }
        Some(other) => return Err(invalid("format", "\"json\" or a JSON schema", &other)),
    }
    match fields.remove("think") {
        None => {}
        Some(Value::Bool(on)) => {
            out.insert("chat_template_kwargs".to_owned(), json!({ "enable_thinking": on }));
            if !on {
                out.insert("reasoning".to_owned(), json!({ "enabled": false }));
            }
        }
        Some(Value::String(effort)) if ["low", "medium", "high"].contains(&&*effort) => {
            out.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(other) => return Err(invalid("think", "true, false, low, medium or high", &other)),
    }
    if let Some(options) = fields.remove("options") {
        let mut options = JsonFields::from_value(options, "options")?;
        for option in SAME {
            out.extend(options.remove(option).map(|value| (option.to_owned(), value)));
        }
        let seed = options.seed("seed")?.map(|seed| match seed {
            Seed::Any => json!(-1),
            Seed::Fixed(seed) => seed.into(),
        });
        out.extend(seed.map(|seed| ("seed".to_owned(), seed)));
        // Read here, so that an error names the option.
        let most = options.limit("num_predict", false)?.map(|most| most.count().map_or(json!(-1), Value::from));
        out.extend(most.map(|most| ("max_tokens".to_owned(), most)));
        options.accept_only("mirostat", &[json!(0)])?;
        LOADING.iter().for_each(|option| drop(options.remove(option)));
        options.finish()?;
    }
    fields.remove("images").map_or(Ok(()), |images| Err(invalid("images", "none (they cannot be read)", &images)))?;
    IGNORED.iter().for_each(|field| drop(fields.remove(field)));
    Ok(out)
}

fn read_message(message: Value, path: &str) -> Result<Value, ApiError> {
    let mut fields = JsonFields::from_value(message, path)?;
    let mut out = Map::new();
    for (field, name) in [
        ("role", "role"),
        ("content", "content"),
        ("thinking", "reasoning_content"),
        ("tool_calls", "tool_calls"),
        ("tool_call_id", "tool_call_id"),
        ("tool_name", "name"),
    ] {
        out.extend(fields.remove(field).map(|value| (name.to_owned(), value)));
    }
    if let Some(images) = fields.remove("images") {
        return Err(invalid(&fields.path("images"), "none (they cannot be read)", &images));
    }
    fields.finish()?;
    Ok(Value::Object(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_body_has_options_format_and_thoughts_as_openai_names_them() {
        let call = json!({ "function": { "name": "f", "arguments": { "x": 1 } } });
        let body = json!({
            "model": "m", "keep_alive": "5m", "think": false, "format": "json",
            "options": { "temperature": 0.5, "num_predict": 7, "num_ctx": 4096, "seed": -1, "stop": ["x"] },
            "messages": [
                { "role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call] },
                { "role": "tool", "tool_name": "f", "content": "7" },
            ],
        });
        let body = chat_body(body.to_string().as_bytes()).unwrap();
        let wanted = json!({
            "model": "m", "stream": true, "temperature": 0.5, "max_tokens": 7, "seed": -1, "stop": ["x"],
            "chat_template_kwargs": { "enable_thinking": false }, "reasoning": { "enabled": false }, "response_format": { "type": "json_object" },
            "messages": [
                { "role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call] },
                { "role": "tool", "name": "f", "content": "7" },
            ],
        });
        assert_eq!((body.endpoint, body.fields.map(Value::Object)), (Endpoint::Chat, Some(wanted)));
    }

    #[test]
    fn generate_body_is_a_chat_unless_raw_and_nothing_without_a_prompt() {
        let read = |body: Value| generate_body(body.to_string().as_bytes()).unwrap();
        let chat =
            read(json!({ "prompt": "hi", "system": "Be brief.", "stream": false, "options": { "num_predict": -1 } }));
        let messages = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hi" }]);
        let wanted = json!({ "stream": false, "messages": messages, "max_tokens": -1 });
        assert_eq!((chat.endpoint, chat.fields.map(Value::Object)), (Endpoint::Chat, Some(wanted)));
        let raw = read(json!({ "prompt": "hi", "raw": true }));
        let wanted = json!({ "stream": true, "prompt": "hi" });
        assert_eq!((raw.endpoint, raw.fields.map(Value::Object)), (Endpoint::Completion, Some(wanted)));
        assert_eq!(read(json!({ "model": "m" })).fields, None);
    }

    #[test]
    fn errors_name_the_field() {
        for (body, says) in [
            (json!({ "options": { "mirostat": 2 } }), "options.mirostat: expected 0"),
            (json!({ "options": { "warp": 1 } }), "`options.warp` is not supported"),
            (json!({ "format": "xml" }), "format: expected"),
            (json!({ "think": "hard" }), "think: expected"),
            (
                json!({ "messages": [{ "role": "user", "content": "a", "images": ["b"] }] }),
                "messages[0].images: expected",
            ),
            (json!({ "messages": [], "warp": 1 }), "`warp` is not supported"),
        ] {
            let error = chat_body(body.to_string().as_bytes()).unwrap_err();
            assert!(error.message.contains(says), "{error:?}");
        }
        let error = generate_body(json!({ "prompt": "a", "raw": true, "think": true }).to_string().as_bytes());
        assert!(error.unwrap_err().message.contains("think: expected"));
        let infill = generate_body(json!({ "prompt": "a", "suffix": "b" }).to_string().as_bytes()).unwrap();
        let wanted = json!({ "stream": true, "prompt": "a", "suffix": "b" });
        assert_eq!((infill.endpoint, infill.fields.map(Value::Object)), (Endpoint::Completion, Some(wanted)));
    }
}
