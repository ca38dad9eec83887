//! Requests for responses.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use thermocline_engine::session::{Request, Role};

use super::{
    input::ChatItems,
    store::ResponseStore,
    tools::{Namespaces, ResponseTools},
};
use crate::{
    answer_form::RequestedGrammar,
    error::ApiError,
    fields::{FieldLimit, FieldSeed, Hint, Ignored, accept_only, each, invalid, missing, parse_fields, read_fields},
    openai::grammar_fields::FormatObject,
    request::RequestedAnswer,
    request_message::{ReadRules, RequestMessage, chat_prompt},
    sampling_fields::set,
    thoughts::{Effort, RequestedThoughts},
};
use thermocline_host::units::{Limit, Seed};

/// The fields of a request, with the hints of agents.
#[derive(Debug, PartialEq, Deserialize)]
struct ResponseFields {
    model: Option<String>,
    input: Option<Value>,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    store: Option<bool>,
    stream: Option<bool>,
    background: Option<Value>,
    truncation: Option<Value>,
    top_logprobs: Option<Value>,
    max_output_tokens: Option<FieldLimit>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    seed: Option<FieldSeed>,
    parallel_tool_calls: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
    text: Option<Value>,
    reasoning: Option<Value>,
    user: Ignored,
    metadata: Ignored,
    safety_identifier: Ignored,
    prompt_cache_key: Ignored,
    prompt_cache_retention: Ignored,
    service_tier: Ignored,
    include: Ignored,
    max_tool_calls: Ignored,
    stream_options: Ignored,
    client_metadata: Hint,
    context_management: Hint,
    prompt_cache_options: Hint,
    betas: Hint,
    moderation: Hint,
}

#[derive(Debug, PartialEq, Deserialize)]
struct TextFormatField {
    format: Option<Value>,
    verbosity: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct ReasoningField {
    effort: Option<Effort>,
    max_tokens: Option<usize>,
    summary: Ignored,
    generate_summary: Ignored,
    context: Ignored,
}

/// The parts of a request that its response needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResponseBody {
    /// The conversation without instructions, which later requests do not inherit.
    pub messages: Vec<RequestMessage>,
    /// Whether later requests may continue the response.
    pub store: bool,
    /// Functions in namespaces.
    pub namespaces: Namespaces,
    /// Kinds and names of the dropped tools.
    pub dropped: Vec<String>,
    /// Fields of the request that the response repeats.
    pub echoed: Map<String, Value>,
}

/// A request for a response.
#[derive(Debug, PartialEq)]
pub struct ResponseRequest {
    /// The answer that the client asks for.
    pub asked: RequestedAnswer,
    /// The parts of the request that its response needs.
    pub body: ResponseBody,
}

/// Reads a request. `store` holds the response that it continues. Missing fields have the values of
/// `defaults`. A field that the server cannot honour is refused by name. If strict, hints and
/// tools that are not functions are refused too.
pub fn read_response_request(
    body: &[u8],
    store: &ResponseStore,
    defaults: &Request,
    rules: &ReadRules,
) -> Result<ResponseRequest, ApiError> {
    let strict = rules.strict;
    let fields: ResponseFields = parse_fields(body, strict)?;
    accept_only(fields.background.as_ref(), "background", &[json!(false)])?;
    accept_only(fields.truncation.as_ref(), "truncation", &[json!("disabled"), json!("auto")])?;
    accept_only(fields.top_logprobs.as_ref(), "top_logprobs", &[json!(0)])?;
    let before = match &fields.previous_response_id {
        Some(id) => store.get(id).ok_or_else(|| ApiError::no_such_response(id))?.messages,
        None => Vec::new(),
    };
    let mut messages = read_input(fields.input.as_ref(), before, strict)?;
    // Later requests find the files of the pictures in the store.
    rules.fetch.replace_addresses(&mut messages)?;
    let store = fields.store.unwrap_or(true);
    let tools = fields.tools.clone().unwrap_or_else(|| json!([]));
    let choice = fields.tool_choice.clone().unwrap_or_else(|| json!("auto"));
    let text = fields.text.clone().unwrap_or_else(|| json!({ "format": { "type": "text" } }));
    let reasoning = fields.reasoning.clone().unwrap_or_else(|| json!({ "effort": null, "summary": null }));
    let mut read = ResponseTools::read(&tools, strict)?;

    let system = fields.instructions.as_ref().map(|text| RequestMessage::new(Role::System, text));
    let prompt = chat_prompt(system.into_iter().chain(messages.iter().cloned()).collect(), false, &rules.fetch)?;
    let mut asked = RequestedAnswer::new(vec![prompt], defaults);
    asked.model = fields.model.clone();
    asked.stream = fields.stream.unwrap_or(false);
    set(&mut asked.settings.sampling.temperature, fields.temperature.map(|it| it as f32));
    set(&mut asked.settings.sampling.top_p, fields.top_p.map(|it| it as f32));
    set(&mut asked.settings.sampling.seed, fields.seed.map(|it| it.0.fixed()));
    set(&mut asked.settings.max_tokens, fields.max_output_tokens.map(|it| it.0.count()));
    asked.tool_choice = read.choose(&choice)?;
    asked.tools = std::mem::take(&mut read.callable);
    asked.grammar = read_text_format(&text)?;
    asked.thoughts = read_thoughts(&reasoning, fields.chat_template_kwargs.clone())?;

    let mut echoed = fields.echoed();
    for (field, value) in [
        ("store", json!(store)),
        ("tools", tools),
        ("tool_choice", choice),
        ("text", text),
        ("reasoning", reasoning),
        ("truncation", json!("disabled")),
        ("metadata", json!({})),
    ] {
        echoed.insert(field.to_owned(), value);
    }
    let ResponseTools { namespaces, dropped, .. } = read;
    Ok(ResponseRequest { asked, body: ResponseBody { messages, store, namespaces, dropped, echoed } })
}

impl ResponseFields {
    /// Returns the fields that the response repeats, as they were read.
    fn echoed(self) -> Map<String, Value> {
        let most = self.max_output_tokens.and_then(|it| it.0.count());
        let mut echoed = Map::new();
        for (field, value) in [
            ("instructions", json!(self.instructions)),
            ("previous_response_id", json!(self.previous_response_id)),
            ("max_output_tokens", json!(most)),
            ("parallel_tool_calls", json!(self.parallel_tool_calls.unwrap_or(true))),
            ("temperature", json!(self.temperature)),
            ("top_p", json!(self.top_p)),
        ] {
            echoed.insert(field.to_owned(), value);
        }
        if let Some(FieldSeed(seed)) = self.seed {
            let seed = if let Seed::Fixed(seed) = seed { json!(seed) } else { json!(-1) };
            echoed.insert("seed".to_owned(), seed);
        }
        echoed
    }
}

/// Reads the messages of `before` and then of `input`: a user's text, or items.
fn read_input(
    input: Option<&Value>,
    before: Vec<RequestMessage>,
    strict: bool,
) -> Result<Vec<RequestMessage>, ApiError> {
    let mut items = ChatItems::after(before, strict);
    match input {
        Some(Value::String(text)) => items.messages.push(RequestMessage::new(Role::User, text)),
        Some(Value::Array(list)) => drop(each(list, "input", |_, item| items.push(item))?),
        None => return Err(missing("input", "a text or items")),
        Some(other) => return Err(invalid("input", "a string or a list of items", other)),
    }
    Ok(items.messages)
}

fn read_text_format(text: &Value) -> Result<Option<RequestedGrammar>, ApiError> {
    let text: TextFormatField = read_fields(text, "text", false)?;
    if text.verbosity.as_deref().is_some_and(|it| !["low", "medium", "high"].contains(&it)) {
        return Err(invalid("text.verbosity", "low, medium or high", &text.verbosity.into()));
    }
    let path = "text.format";
    let Some(format) = text.format else { return Ok(None) };
    if format["type"] != "json_schema" {
        return read_fields::<FormatObject>(&format, path, false)?.grammar(path);
    }
    match &format["schema"] {
        Value::Null => Err(invalid("text.format.schema", "a JSON schema", &Value::Null)),
        schema => RequestedGrammar::of_schema(schema, format["strict"] == true, path).map(Some),
    }
}

fn read_thoughts(reasoning: &Value, variables: Option<Map<String, Value>>) -> Result<RequestedThoughts, ApiError> {
    let reasoning: ReasoningField = read_fields(reasoning, "reasoning", false)?;
    let budget = reasoning.max_tokens.map(Limit::Of);
    let mut thoughts = RequestedThoughts { variables: variables.unwrap_or_default(), budget };
    if let Some(effort) = reasoning.effort {
        thoughts.think(effort);
    }
    Ok(thoughts)
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{Message, Prompt};

    use super::*;
    use crate::{answer_form::ToolChoice, openai::responses::store::StoredResponse};

    fn read_as(body: &Value, store: &ResponseStore, strict: bool) -> Result<ResponseRequest, String> {
        let defaults = Request::new(Prompt::Tokens(Vec::new()));
        read_response_request(
            body.to_string().as_bytes(),
            store,
            &defaults,
            &ReadRules { strict, ..ReadRules::default() },
        )
        .map_err(|error| error.message)
    }

    fn read(body: Value, store: &ResponseStore) -> Result<ResponseRequest, String> {
        read_as(&body, store, false)
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
        let ResponseRequest { asked, body } = read(body, &ResponseStore::default()).unwrap();
        let messages = [
            RequestMessage::new(Role::User, "hi"),
            RequestMessage {
                thoughts: "Hm.".to_owned(),
                calls: vec![
                    RequestMessage::call(Some("a"), "f", "{}"),
                    RequestMessage::call(Some("b"), "g", "{\"x\":1}"),
                ],
                ..RequestMessage::new(Role::Assistant, "Let me see.")
            },
            RequestMessage::result(Some("a".to_owned()), "7"),
            RequestMessage::result(Some("b".to_owned()), "8"),
        ];
        assert_eq!((&body.messages[..], body.store), (&messages[..], false));
        let system = RequestMessage::new(Role::System, "Be brief.");
        let all: Vec<Message> = std::iter::once(system).chain(messages).map(Message::from).collect();
        assert_eq!(asked.prompts, [Prompt::Chat(all)]);
        let settings = (asked.settings.max_tokens, asked.stream, asked.settings.sampling.temperature);
        assert_eq!(settings, (Some(9), true, 0.5));
        assert_eq!((asked.tools[0].name(), asked.tools[0].strict), ("f", true));
        assert_eq!(asked.tool_choice, ToolChoice::Named("f".to_owned()));
        let grammar = RequestedGrammar::of_schema(&json!({ "type": "null" }), true, "text.format").unwrap();
        assert_eq!(asked.grammar, Some(grammar));
        assert_eq!(asked.thoughts.budget, Some(Limit::Of(1024)));
        let echoed = &body.echoed;
        assert_eq!((&echoed["parallel_tool_calls"], &echoed["tools"][0]["name"]), (&json!(false), &json!("f")));
    }

    #[test]
    fn previous_response_comes_first_without_its_instructions() {
        let store = ResponseStore::default();
        let messages = vec![RequestMessage::new(Role::User, "a"), RequestMessage::new(Role::Assistant, "b")];
        store.insert(StoredResponse { id: "resp_1".to_owned(), messages, response: json!({}) });
        let body = read(json!({ "input": "c", "previous_response_id": "resp_1" }), &store).unwrap().body;
        let texts: Vec<&str> = body.messages.iter().map(|message| &*message.content).collect();
        assert_eq!(texts, ["a", "b", "c"]);
        let error = read(json!({ "input": "c", "previous_response_id": "resp_2" }), &store).unwrap_err();
        assert!(error.contains("resp_2"), "{error}");
    }

    #[test]
    fn hints_pass_unless_the_server_is_strict() {
        let body = json!({ "input": "a", "client_metadata": { "origin": "cli" }, "max_output_tokens": -1 });
        let ResponseRequest { asked, body: read } = read(body.clone(), &ResponseStore::default()).unwrap();
        assert_eq!((asked.settings.max_tokens, &read.echoed["max_output_tokens"]), (None, &Value::Null));
        let limit = json!({ "input": "a", "max_output_tokens": -1 });
        let error = read_as(&limit, &ResponseStore::default(), true).unwrap_err();
        assert!(error.contains("max_output_tokens"), "{error}");
        let hint = json!({ "input": "a", "client_metadata": { "origin": "cli" } });
        let error = read_as(&hint, &ResponseStore::default(), true).unwrap_err();
        assert!(error.contains("client_metadata"), "{error}");
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
                "input[0].content[0].image_url",
            ),
            (json!({ "input": [{ "type": "function_call", "name": "f" }] }), "input[0].call_id: expected"),
        ] {
            let error = read(body, &ResponseStore::default()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
