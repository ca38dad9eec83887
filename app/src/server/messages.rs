//! Parsing of the `messages` of a chat.

use serde_json::Value;
use thermocline_engine::session::{Message, Role};

use super::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Parses `messages`.
pub fn parse_messages(value: Option<Value>) -> Result<Vec<Message>, ApiError> {
    match value {
        None => Err(ApiError::invalid_field("messages", "messages: expected at least one message, got none")),
        Some(Value::Array(list)) => {
            list.into_iter().enumerate().map(|(at, it)| parse_message(it, &format!("messages[{at}]"))).collect()
        }
        Some(other) => Err(invalid("messages", "a list of messages", &other)),
    }
}

fn parse_message(value: Value, path: &str) -> Result<Message, ApiError> {
    let mut fields = JsonFields::from_value(value, path)?;
    let path = fields.path("role");
    let role = fields.string("role")?.unwrap_or_default();
    let role = match &*role {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => return Err(invalid(&path, "system, developer, user or assistant", &other.into())),
    };
    let path = fields.path("content");
    let content = match fields.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate();
            parts.map(|(at, it)| parse_text_part(it, &format!("{path}[{at}]"))).collect::<Result<Vec<_>, _>>()?.concat()
        }
        Some(other) => return Err(invalid(&path, "a string or a list of text parts", &other)),
        None => return Err(ApiError::invalid_field(&path, format!("{path}: expected text, got none"))),
    };
    fields.finish()?;
    Ok(Message { role, content })
}

fn parse_text_part(value: Value, path: &str) -> Result<String, ApiError> {
    let mut fields = JsonFields::from_value(value, path)?;
    let path = fields.path("type");
    match fields.string("type")?.as_deref() {
        Some("text") => {}
        other => return Err(invalid(&path, "text (nothing else can be read)", &other.into())),
    }
    let path = fields.path("text");
    let text = fields
        .string("text")?
        .ok_or_else(|| ApiError::invalid_field(&path, format!("{path}: expected text, got none")))?;
    fields.finish()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parse_messages_reads_every_role_and_both_forms_of_content() {
        let read = parse_messages(Some(json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": "c", "refusal": null, "tool_calls": [], "audio": null },
        ])));
        let read: Vec<_> = read.unwrap().into_iter().map(|it| (it.role, it.content)).collect();
        let want = [(Role::System, "Be brief."), (Role::User, "ab"), (Role::Assistant, "c")];
        assert_eq!(read, want.map(|(role, content)| (role, content.to_owned())));
    }

    #[test]
    fn parse_messages_errors_name_the_invalid_path() {
        let user = |content: Value| json!([{ "role": "user", "content": content }]);
        for (list, says) in [
            (json!("hi"), "messages: expected a list"),
            (json!(["hi"]), "messages[0]: expected an object"),
            (json!([{ "content": "hi" }]), "messages[0].role: expected system"),
            (json!([{ "role": "tool", "content": "hi" }]), "got \"tool\""),
            (json!([{ "role": "user" }]), "messages[0].content: expected text"),
            (user(json!(7)), "messages[0].content: expected a string or a list"),
            (user(json!([{ "type": "image_url", "image_url": {} }])), "messages[0].content[0].type: expected text"),
            (user(json!([{ "type": "text" }])), "messages[0].content[0].text: expected text"),
            (json!([{ "role": "user", "content": "hi", "name": "Ann" }]), "`messages[0].name` is not supported"),
        ] {
            let error = parse_messages(Some(list)).unwrap_err();
            assert!(error.message.contains(says) && error.status == 400, "{error:?}");
        }
        assert!(parse_messages(None).is_err());
    }
}
