//! The turns of a chat.

use serde_json::Value;
use thermocline_engine::session::{Message, Role};

use super::{
    error::ApiError,
    fields::{Fields, wrong},
};

/// Reads `messages`.
pub fn messages(value: Option<Value>) -> Result<Vec<Message>, ApiError> {
    match value {
        None => Err(ApiError::field("messages", "messages: expected at least one message, got none")),
        Some(Value::Array(list)) => {
            list.into_iter().enumerate().map(|(at, it)| message(it, &format!("messages[{at}]"))).collect()
        }
        Some(other) => Err(wrong("messages", "a list of messages", &other)),
    }
}

fn message(value: Value, place: &str) -> Result<Message, ApiError> {
    let mut fields = Fields::of(value, place)?;
    let name = fields.name("role");
    let role = fields.text("role")?.unwrap_or_default();
    let role = match &*role {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => return Err(wrong(&name, "system, developer, user or assistant", &other.into())),
    };
    let name = fields.name("content");
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate();
            parts.map(|(at, it)| part(it, &format!("{name}[{at}]"))).collect::<Result<Vec<_>, _>>()?.concat()
        }
        Some(other) => return Err(wrong(&name, "a string or a list of text parts", &other)),
        None => return Err(ApiError::field(&name, format!("{name}: expected text, got none"))),
    };
    fields.finish()?;
    Ok(Message { role, content })
}

fn part(value: Value, place: &str) -> Result<String, ApiError> {
    let mut fields = Fields::of(value, place)?;
    let name = fields.name("type");
    match fields.text("type")?.as_deref() {
        Some("text") => {}
        other => return Err(wrong(&name, "text (nothing else can be read)", &other.into())),
    }
    let name = fields.name("text");
    let text =
        fields.text("text")?.ok_or_else(|| ApiError::field(&name, format!("{name}: expected text, got none")))?;
    fields.finish()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn roles_and_both_shapes_of_content() {
        let read = messages(Some(json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": "c", "refusal": null, "tool_calls": [], "audio": null },
        ])));
        let read: Vec<_> = read.unwrap().into_iter().map(|it| (it.role, it.content)).collect();
        let want = [(Role::System, "Be brief."), (Role::User, "ab"), (Role::Assistant, "c")];
        assert_eq!(read, want.map(|(role, content)| (role, content.to_owned())));
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_place() {
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
            let error = messages(Some(list)).unwrap_err();
            assert!(error.message.contains(says) && error.status == 400, "{error:?}");
        }
        assert!(messages(None).is_err());
    }
}
