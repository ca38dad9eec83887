//! Parsing of the `messages` of a chat.

use serde_json::{Map, Value};
use thermocline_engine::{
    session::{Message, Role},
    tokenizer::reasoning::{AnswerPart, transcript::TranscriptWriter},
};

use super::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Fields of a message that change nothing about it: hints of other servers' clients.
const HINTS: [&str; 3] = ["cache_control", "id", "status"];

/// Those that clients add to an answer of an assistant, and send back with it.
const CLIENTS_OWN: [&str; 7] = [
    "provider_specific_fields",
    "annotations",
    "thinking_blocks",
    "reasoning_details",
    "thinking",
    "prefix",
    "finish_reason",
];

/// Parses `messages`. If not `strict`, a message may be without content, and a function that was called may be named.
pub fn parse_messages(value: Option<Value>, strict: bool) -> Result<Vec<Message>, ApiError> {
    match value {
        None => Err(ApiError::invalid_field("messages", "messages: expected at least one message, got none")),
        Some(Value::Array(list)) => {
            let list = list.into_iter().enumerate();
            list.map(|(at, it)| parse_message(it, &format!("messages[{at}]"), strict)).collect()
        }
        Some(other) => Err(invalid("messages", "a list of messages", &other)),
    }
}

fn parse_message(value: Value, path: &str, strict: bool) -> Result<Message, ApiError> {
    let mut fields = JsonFields::from_value(value, path)?;
    let path = fields.path("role");
    let role = fields.string("role")?.unwrap_or_default();
    let role = match &*role {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" => Role::Tool,
        other => return Err(invalid(&path, "system, developer, user, assistant or tool", &other.into())),
    };
    let mut more = Map::new();
    if role == Role::Assistant
        && let Some(calls) = fields.remove("tool_calls")
    {
        more.insert("tool_calls".to_owned(), parse_calls(calls, &fields.path("tool_calls"))?);
    }
    if role == Role::Tool {
        more.extend(fields.string("tool_call_id")?.map(|id| ("tool_call_id".to_owned(), id.into())));
    }
    if !strict || role == Role::Tool {
        more.extend(fields.string("name")?.map(|name| ("name".to_owned(), name.into())));
    }
    let path = fields.path("content");
    let content = match fields.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate();
            let text = |(at, it): (usize, Value)| parse_text_part(it, &format!("{path}[{at}]"), strict);
            parts.map(text).collect::<Result<Vec<_>, _>>()?.concat()
        }
        Some(other) => return Err(invalid(&path, "a string or a list of text parts", &other)),
        None if !strict || more.contains_key("tool_calls") => String::new(),
        None => return Err(ApiError::invalid_field(&path, format!("{path}: expected text, got none"))),
    };
    let reasoning = fields.string("reasoning_content")?.or(if strict { None } else { fields.string("reasoning")? });
    let thoughts = reasoning.filter(|text| !text.is_empty() && role == Role::Assistant);
    if !strict {
        fields.ignore(&HINTS);
        if role == Role::Assistant {
            fields.ignore(&CLIENTS_OWN);
        }
    }
    fields.finish()?;
    let content = match thoughts {
        Some(thoughts) => {
            let mut writer = TranscriptWriter::default();
            writer.push(AnswerPart::Thinking, &thoughts) + &writer.push(AnswerPart::Answer, &content)
        }
        None => content,
    };
    Ok(Message { role, content, fields: more })
}

/// Checks the calls of an assistant's message.
fn parse_calls(value: Value, path: &str) -> Result<Value, ApiError> {
    let Value::Array(calls) = &value else { return Err(invalid(path, "a list of calls", &value)) };
    for (at, call) in calls.iter().enumerate() {
        let function = &call["function"];
        let arguments = &function["arguments"];
        if !function["name"].is_string() || !(arguments.is_string() || arguments.is_object() || arguments.is_null()) {
            let expected = "an object with `function`: {`name`, `arguments`}";
            return Err(invalid(&format!("{path}[{at}]"), expected, call));
        }
    }
    Ok(value)
}

fn parse_text_part(value: Value, path: &str, strict: bool) -> Result<String, ApiError> {
    let mut fields = JsonFields::from_value(value, path)?;
    let path = fields.path("type");
    let field = match fields.string("type")?.as_deref() {
        Some("text") => "text",
        Some("refusal") if !strict => "refusal",
        other => return Err(invalid(&path, "text (nothing else can be read)", &other.into())),
    };
    let path = fields.path(field);
    let text = fields
        .string(field)?
        .ok_or_else(|| ApiError::invalid_field(&path, format!("{path}: expected text, got none")))?;
    if !strict {
        fields.ignore(&["cache_control"]);
    }
    fields.finish()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parse_messages_reads_every_role_and_both_forms_of_content() {
        let read = parse_messages(
            Some(json!([
                { "role": "developer", "content": "Be brief." },
                { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
                { "role": "assistant", "content": "c", "refusal": null, "tool_calls": [], "audio": null },
                { "role": "assistant", "content": "d", "reasoning_content": "Hm." },
            ])),
            true,
        );
        let read: Vec<_> = read.unwrap().into_iter().map(|it| (it.role, it.content)).collect();
        let thought = (Role::Assistant, "<think>\nHm.\n</think>\n\nd");
        let want = [(Role::System, "Be brief."), (Role::User, "ab"), (Role::Assistant, "c"), thought];
        assert_eq!(read, want.map(|(role, content)| (role, content.to_owned())));
    }

    #[test]
    fn parse_messages_errors_name_the_invalid_path() {
        let user = |content: Value| json!([{ "role": "user", "content": content }]);
        for (list, says) in [
            (json!("hi"), "messages: expected a list"),
            (json!(["hi"]), "messages[0]: expected an object"),
            (json!([{ "content": "hi" }]), "messages[0].role: expected system"),
            (json!([{ "role": "robot", "content": "hi" }]), "got \"robot\""),
            (json!([{ "role": "assistant", "tool_calls": [{ "id": "a" }] }]), "messages[0].tool_calls[0]: expected"),
            (json!([{ "role": "user" }]), "messages[0].content: expected text"),
            (user(json!(7)), "messages[0].content: expected a string or a list"),
            (user(json!([{ "type": "image_url", "image_url": {} }])), "messages[0].content[0].type: expected text"),
            (user(json!([{ "type": "text" }])), "messages[0].content[0].text: expected text"),
            (json!([{ "role": "user", "content": "hi", "name": "Ann" }]), "`messages[0].name` is not supported"),
        ] {
            let error = parse_messages(Some(list), true).unwrap_err();
            assert!(error.message.contains(says) && error.status == 400, "{error:?}");
        }
        assert!(parse_messages(None, true).is_err());
    }
    #[test]
    fn calls_and_results_of_tools_are_fields_of_their_messages() {
        let calls = json!([{ "id": "a", "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
        let list = json!([
            { "role": "assistant", "content": null, "tool_calls": calls },
            { "role": "tool", "tool_call_id": "a", "content": "7" },
        ]);
        let read = parse_messages(Some(list), true).unwrap();
        assert_eq!((&read[0].fields["tool_calls"], &*read[0].content), (&calls, ""));
        assert_eq!((read[1].role, &read[1].fields["tool_call_id"]), (Role::Tool, &json!("a")));
    }

    #[test]
    fn names_and_missing_content_are_accepted_unless_strict() {
        let list = || Some(json!([{ "role": "user", "content": null, "name": "Ann" }]));
        assert_eq!(parse_messages(list(), false).unwrap()[0].fields["name"], "Ann");
        assert!(parse_messages(list(), true).is_err());
    }

    #[test]
    fn answers_are_taken_back_with_the_fields_of_clients_unless_strict() {
        let list = || Some(json!([{ "role": "assistant", "content": "a", "provider_specific_fields": { "x": 1 } }]));
        assert_eq!(parse_messages(list(), false).unwrap()[0].content, "a");
        assert!(parse_messages(list(), true).is_err());
        let user = Some(json!([{ "role": "user", "content": "a", "provider_specific_fields": {} }]));
        assert!(parse_messages(user, false).is_err());
        let refusal = || Some(json!([{ "role": "assistant", "content": [{ "type": "refusal", "refusal": "No." }] }]));
        assert_eq!(parse_messages(refusal(), false).unwrap()[0].content, "No.");
        assert!(parse_messages(refusal(), true).is_err());
    }
}
