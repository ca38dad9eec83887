//! The `messages` of a chat.

use serde::Deserialize;
use serde_json::Value;
use thermocline_engine::session::Role;

use crate::{
    error::ApiError,
    fields::{Hint, Lenient, LenientField, ListItem, TextOr, each, missing},
    request_message::{PictureUrl, RequestMessage},
};

/// A message.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", rename = "role: system, developer, user, assistant or tool")]
pub enum ChatBodyMessage {
    #[serde(alias = "developer")]
    System((MessageFields, SpeakerName)),
    User((MessageFields, SpeakerName)),
    Assistant(Box<(MessageFields, SpeakerName, AssistantFields)>),
    #[serde(alias = "function")]
    Tool((MessageFields, ResultFields)),
}

/// The fields of every message.
#[derive(Debug, PartialEq, Deserialize)]
pub struct MessageFields {
    content: Option<TextOr<TextPart>>,
    reasoning_content: Option<String>,
    reasoning: LenientField<String>,
    cache_control: Hint,
    id: Hint,
    status: Hint,
}

/// The name of the message's author.
#[derive(Debug, PartialEq, Deserialize)]
pub struct SpeakerName {
    name: LenientField<String>,
}

/// The fields of an assistant message. Clients add the hints to answers and send them back.
#[derive(Debug, PartialEq, Deserialize)]
pub struct AssistantFields {
    tool_calls: Option<Vec<CallObject>>,
    provider_specific_fields: Hint,
    annotations: Hint,
    thinking_blocks: Hint,
    reasoning_details: Hint,
    thinking: Hint,
    prefix: Hint,
    finish_reason: Hint,
}

/// The fields of a message with a tool's result.
#[derive(Debug, PartialEq, Deserialize)]
pub struct ResultFields {
    tool_call_id: Option<String>,
    name: Option<String>,
}

/// A tool call, which chat templates read as it is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct CallObject(pub Value);

/// A part of a message's content.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: text or image_url (nothing else can be read)")]
pub enum TextPart {
    Text { text: Option<String>, cache_control: Hint },
    ImageUrl { image_url: PictureUrl, cache_control: Hint },
    Refusal(Lenient<RefusalPart>),
}

/// The fields of a refusal.
#[derive(Debug, PartialEq, Deserialize)]
pub struct RefusalPart {
    refusal: Option<String>,
    cache_control: Hint,
}

impl TryFrom<Value> for CallObject {
    type Error = &'static str;

    fn try_from(call: Value) -> Result<Self, &'static str> {
        let function = &call["function"];
        let arguments = &function["arguments"];
        match function["name"].is_string() && (arguments.is_string() || arguments.is_object() || arguments.is_null()) {
            true => Ok(CallObject(call)),
            false => Err("an object with `function`: {`name`, `arguments`}"),
        }
    }
}

impl ListItem for TextPart {
    const NAME: &'static str = "parts";
}

impl TextPart {
    /// The text of the part. A picture is added to `pictures`.
    pub fn read(self, pictures: &mut Vec<String>) -> Result<String, ApiError> {
        let (field, text) = match self {
            TextPart::Text { text, .. } => ("text", text),
            TextPart::ImageUrl { image_url, .. } => {
                pictures.push(image_url.0);
                return Ok(String::new());
            }
            TextPart::Refusal(part) => ("refusal", part.0.refusal),
        };
        text.ok_or_else(|| missing(field, "text"))
    }
}

impl ChatBodyMessage {
    /// Converts the message. Unless `strict`, the content may be missing.
    fn read(self, strict: bool) -> Result<RequestMessage, ApiError> {
        let named = |role, fields: MessageFields, name: SpeakerName| {
            let name = name.name.map(|it| it.0);
            fields.read(role, strict).map(|message| RequestMessage { name, ..message })
        };
        match self {
            ChatBodyMessage::System((fields, name)) => named(Role::System, fields, name),
            ChatBodyMessage::User((fields, name)) => named(Role::User, fields, name),
            ChatBodyMessage::Assistant(fields) => {
                let (mut fields, name, AssistantFields { tool_calls, .. }) = *fields;
                if tool_calls.is_some() {
                    fields.content = fields.content.or(Some(TextOr::Text(String::new())));
                }
                let thoughts = fields.reasoning_content.take().or(fields.reasoning.take().map(|it| it.0));
                let message = named(Role::Assistant, fields, name)?;
                let calls = tool_calls.unwrap_or_default().into_iter().map(|call| call.0).collect();
                Ok(RequestMessage { thoughts: thoughts.unwrap_or_default(), calls, ..message })
            }
            ChatBodyMessage::Tool((fields, ResultFields { tool_call_id, name })) => {
                let message = fields.read(Role::Tool, strict)?;
                Ok(RequestMessage { call_id: tool_call_id, name, ..message })
            }
        }
    }
}

impl MessageFields {
    fn read(self, role: Role, strict: bool) -> Result<RequestMessage, ApiError> {
        let mut pictures = Vec::new();
        let content = match self.content {
            Some(content) => content.text(|part| part.read(&mut pictures)).map_err(|error| error.under("content"))?,
            None if !strict => String::new(),
            None => return Err(missing("content", "text")),
        };
        Ok(RequestMessage { pictures, ..RequestMessage::new(role, content) })
    }
}

/// Reads the messages of a chat.
pub fn read_messages(list: Option<Vec<ChatBodyMessage>>, strict: bool) -> Result<Vec<RequestMessage>, ApiError> {
    let list = list.ok_or_else(|| missing("messages", "at least one message"))?;
    each(list, "messages", |_, message| message.read(strict))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thermocline_engine::session::Message;

    use super::*;
    use crate::fields::parse_fields;

    #[derive(Debug, Deserialize)]
    struct ChatMessages {
        messages: Option<Vec<ChatBodyMessage>>,
    }

    fn parse_messages(list: Option<Value>, strict: bool) -> Result<Vec<Message>, ApiError> {
        let chat: ChatMessages = parse_fields(json!({ "messages": list }).to_string().as_bytes(), strict)?;
        Ok(read_messages(chat.messages, strict)?.into_iter().map(Message::from).collect())
    }

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
    fn pictures_are_read_in_both_forms() {
        let parts = json!([
            { "type": "image_url", "image_url": { "url": "data:a", "detail": "low" } },
            { "type": "text", "text": "What is it?" },
            { "type": "image_url", "image_url": "data:b" },
        ]);
        let body = json!({ "messages": [{ "role": "user", "content": parts }] }).to_string();
        let chat: ChatMessages = parse_fields(body.as_bytes(), true).unwrap();
        let read = read_messages(chat.messages, true).unwrap();
        assert_eq!(read[0].pictures, ["data:a", "data:b"]);
        assert_eq!(read[0].content, "What is it?");
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
            (user(json!([{ "type": "input_audio" }])), "messages[0].content[0].type: expected text or image_url"),
            (user(json!([{ "type": "image_url", "image_url": {} }])), "image_url: expected an object with `url`"),
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
