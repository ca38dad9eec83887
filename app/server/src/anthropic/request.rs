//! Requests for messages.

use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::session::Request;

use super::{
    answer_fields::AnswerFields,
    blocks::{BlockMessage, TextBlock, system_message},
};
use crate::{
    answer_form::{RequestedTool, ToolChoice},
    error::ApiError,
    fields::{FieldLimit, Hint, Ignored, LenientField, TextOr, each, invalid, missing, parse_fields, read_fields},
    request::RequestedAnswer,
    request_message::{ReadRules, chat_prompt},
    sampling_fields::{read_stop, set},
};
use thermocline_host::units::Limit;

/// The fields of a request, with the hints of agents.
#[derive(Debug, PartialEq, Deserialize)]
struct MessageBody {
    model: Option<String>,
    max_tokens: Option<FieldLimit>,
    stream: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<FieldLimit>,
    stop_sequences: Option<Value>,
    system: Option<TextOr<TextBlock>>,
    messages: Option<Vec<BlockMessage>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<CallChoice>,
    metadata: Ignored,
    service_tier: Ignored,
    context_management: Hint,
    cache_control: Hint,
    inference_geo: Hint,
    speed: Hint,
    betas: Hint,
    diagnostics: Hint,
}

/// A tool, with the hints of agents.
#[derive(Debug, PartialEq, Deserialize)]
struct ClientTool {
    #[serde(rename = "type")]
    kind: Ignored,
    name: Option<String>,
    description: Option<String>,
    input_schema: Option<Value>,
    strict: LenientField<bool>,
    cache_control: Ignored,
    eager_input_streaming: Hint,
    defer_loading: Hint,
    input_examples: Hint,
    allowed_callers: Hint,
    title: Hint,
}

#[derive(Debug, PartialEq, Deserialize)]
struct CallChoice {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    /// Has no effect: forced calls always come one at a time.
    disable_parallel_tool_use: Option<bool>,
}

/// Reads a request. Missing fields have the values of `defaults`. `max_tokens` may be missing if
/// the request only counts tokens. A field that the server cannot honour is refused by name. If
/// strict, hints are refused too.
pub fn read_message_request(
    body: &[u8],
    defaults: &Request,
    only_counts: bool,
    rules: &ReadRules,
) -> Result<RequestedAnswer, ApiError> {
    let strict = rules.strict;
    let (body, fields): (MessageBody, AnswerFields) = parse_fields(body, strict)?;
    let mut asked = RequestedAnswer::new(Vec::new(), defaults);
    match body.max_tokens.map(|it| it.0) {
        Some(Limit::Of(0)) => return Err(invalid("max_tokens", "a number of at least 1", &json!(0))),
        None if !only_counts => return Err(missing("max_tokens", "a number of at least 1")),
        most => set(&mut asked.settings.max_tokens, most.map(Limit::count)),
    }
    let sampling = &mut asked.settings.sampling;
    set(&mut sampling.temperature, body.temperature);
    set(&mut sampling.top_p, body.top_p);
    set(&mut sampling.top_k, body.top_k.map(|it| it.0.count_or(0)));
    set(&mut asked.settings.stop, read_stop(body.stop_sequences.as_ref(), "stop_sequences", false)?);
    let mut messages = Vec::new();
    if let Some(system) = body.system {
        messages.extend(system_message(system, strict)?);
    }
    let list = body.messages.ok_or_else(|| missing("messages", "at least one message"))?;
    each(list, "messages", |_, message| message.read(&mut messages))?;
    asked.prompts.push(chat_prompt(messages, false, &rules.fetch)?);
    asked.tools =
        each(body.tools.unwrap_or_default(), "tools", |at, tool| read_tool(&tool, format!("tools[{at}]"), strict))?;
    asked.tool_choice = body.tool_choice.map_or(Ok(ToolChoice::Auto), CallChoice::read)?;
    asked.thoughts = fields.thoughts()?;
    asked.grammar = fields.grammar()?;
    Ok(RequestedAnswer { model: body.model, stream: body.stream.unwrap_or(false), ..asked })
}

fn read_tool(tool: &Value, path: String, strict: bool) -> Result<RequestedTool, ApiError> {
    let kind = &tool["type"];
    if !kind.is_null() && kind != "custom" {
        return Err(invalid("type", "custom (the server has no tools of its own)", kind));
    }
    let tool: ClientTool = read_fields(tool, "", strict)?;
    let name = tool.name.filter(|name| !name.is_empty()).ok_or_else(|| invalid("name", "a name", &Value::Null))?;
    let function = json!({ "name": name, "description": tool.description, "parameters": tool.input_schema });
    let definition = json!({ "type": "function", "function": function });
    RequestedTool::new(definition, tool.strict.is_some_and(|it| it.0), path, "input_schema")
}

impl CallChoice {
    fn read(self) -> Result<ToolChoice, ApiError> {
        match (self.kind.as_deref(), self.name) {
            (Some("auto"), None) => Ok(ToolChoice::Auto),
            (Some("none"), None) => Ok(ToolChoice::None),
            (Some("any"), None) => Ok(ToolChoice::Required),
            (Some("tool"), Some(name)) => Ok(ToolChoice::Named(name)),
            (kind, _) => Err(invalid("tool_choice.type", "auto, any, none, or tool with a name", &kind.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;
    use thermocline_engine::session::{Message, Prompt, Role};

    use super::*;

    fn read(body: &Value) -> Result<RequestedAnswer, String> {
        let defaults = Request::new(Prompt::Tokens(Vec::new()));
        read_message_request(body.to_string().as_bytes(), &defaults, false, &ReadRules::default())
            .map_err(|error| error.message)
    }

    fn message(role: Role, content: &str, fields: Value) -> Message {
        let Value::Object(fields) = fields else { panic!("{fields}") };
        Message { fields, ..Message::new(role, content) }
    }

    #[test]
    fn system_calls_and_results_are_messages_of_their_own() {
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
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" }, "strict": true }],
            "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
            "thinking": { "type": "enabled", "budget_tokens": 2000 },
        });
        let asked = read(&body).unwrap();
        let call = json!({ "id": "a", "type": "function", "function": { "name": "f", "arguments": "{\"x\":1}" } });
        let messages = vec![
            message(Role::System, "Be brief.", json!({})),
            message(Role::User, "hi", json!({})),
            message(Role::Assistant, "<think>\nHm.\n</think>\n\nLet me see.", json!({ "tool_calls": [call] })),
            message(Role::Tool, "7", json!({ "tool_call_id": "a" })),
            message(Role::Tool, "Error: no", json!({ "tool_call_id": "b" })),
            message(Role::User, "So?", json!({})),
        ];
        assert_eq!(asked.prompts, [Prompt::Chat(messages)]);
        let settings = (asked.model.as_deref(), asked.settings.max_tokens, asked.settings.stop);
        assert_eq!(settings, (Some("claude"), Some(9), vec!["x".to_owned()]));
        let function = json!({ "name": "f", "description": "d", "parameters": { "type": "object" } });
        let definition = json!({ "type": "function", "function": function });
        assert_eq!(asked.tools, [RequestedTool { definition, strict: true, path: "tools[0]".to_owned() }]);
        assert_eq!(asked.tool_choice, ToolChoice::Named("f".to_owned()));
        let variables = Map::from_iter([("enable_thinking".to_owned(), json!(true))]);
        assert_eq!((asked.thoughts.variables, asked.thoughts.budget), (variables, Some(Limit::Of(2000))));
    }

    #[test]
    fn systems_among_messages_formats_and_empty_answers_are_passed_on() {
        let format = json!({ "type": "json_schema", "schema": { "type": "null" } });
        let body = json!({
            "max_tokens": 9, "output_config": { "effort": "low", "format": format },
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": [] },
                { "role": "system", "content": [{ "type": "text", "text": "b", "cache_control": {} }] },
                { "role": "system", "content": "c" },
            ],
        });
        let asked = read(&body).unwrap();
        let messages = vec![
            message(Role::User, "a", json!({})),
            message(Role::Assistant, "", json!({})),
            message(Role::System, "b", json!({})),
            message(Role::System, "c", json!({})),
        ];
        assert_eq!(asked.prompts, [Prompt::Chat(messages)]);
        let grammar = asked.grammar.unwrap();
        assert_eq!(grammar.field, "output_config.format");
        let user = json!([{ "role": "user", "content": "a" }]);
        let old = json!({ "max_tokens": 9, "messages": user, "output_format": format });
        let by_old_name = read(&old).unwrap().grammar.unwrap();
        assert_eq!((&*by_old_name.field, by_old_name.grammar), ("output_format", grammar.grammar));
        let defaults = Request::new(Prompt::Tokens(Vec::new()));
        let strict = ReadRules { strict: true, ..ReadRules::default() };
        assert!(read_message_request(old.to_string().as_bytes(), &defaults, false, &strict).is_err());
    }

    #[test]
    fn errors_name_the_field() {
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
            (
                user(json!([{ "type": "image", "source": {} }])),
                "messages[0].content[0].source.type: expected base64 or",
            ),
            (user(json!([{ "type": "text" }])), "messages[0].content[0].text: expected a string"),
            (user(json!(null)), "messages[0].content: expected a string"),
        ] {
            let error = read(&body).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
