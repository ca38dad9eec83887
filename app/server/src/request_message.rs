//! A chat message in a protocol-independent form.

use serde_json::{Map, Value, json};
use thermocline_engine::{
    session::{Message, Prompt, Role},
    tokenizer::reasoning::{AnswerPart, transcript::TranscriptWriter},
};

/// A message of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestMessage {
    /// Role of the speaker.
    pub role: Role,
    /// The text.
    pub content: String,
    /// The assistant's thoughts before the text.
    pub thoughts: String,
    /// The assistant's tool calls, in the form that chat templates read.
    pub calls: Vec<Value>,
    /// ID of the tool call that this message answers.
    pub call_id: Option<String>,
    /// Name of the message's author, or of the tool.
    pub name: Option<String>,
}

impl RequestMessage {
    /// Creates a message of text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        let (content, thoughts, calls) = (content.into(), String::new(), Vec::new());
        RequestMessage { role, content, thoughts, calls, call_id: None, name: None }
    }

    /// Creates the result of a tool call.
    pub fn result(call_id: Option<String>, content: impl Into<String>) -> Self {
        RequestMessage { call_id, ..RequestMessage::new(Role::Tool, content) }
    }

    /// Builds a tool call in the form that chat templates read.
    pub fn call(id: Option<&str>, name: &str, arguments: &str) -> Value {
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
    }

    /// Bytes of the message and its texts.
    pub fn bytes(&self) -> usize {
        let calls: usize = self.calls.iter().map(|call| call.to_string().len()).sum();
        size_of::<Self>() + self.content.len() + self.thoughts.len() + calls
    }
}

impl From<RequestMessage> for Message {
    fn from(message: RequestMessage) -> Self {
        let RequestMessage { role, content, thoughts, calls, call_id, name } = message;
        let mut fields = Map::new();
        if !calls.is_empty() {
            fields.insert("tool_calls".to_owned(), calls.into());
        }
        fields.extend(call_id.map(|id| ("tool_call_id".to_owned(), id.into())));
        fields.extend(name.map(|name| ("name".to_owned(), name.into())));
        let content = if thoughts.is_empty() {
            content
        } else {
            let mut writer = TranscriptWriter::default();
            writer.push(AnswerPart::Thinking, &thoughts) + &writer.push(AnswerPart::Answer, &content)
        };
        Message { fields, ..Message::new(role, content) }
    }
}

/// Valid roles of a message, as errors list them.
pub const ROLES: &str = "system, developer, user, assistant or tool";

/// Parses a role name.
pub fn role_of(name: &str) -> Option<Role> {
    match name {
        "system" | "developer" => Some(Role::System),
        "user" => Some(Role::User),
        "assistant" => Some(Role::Assistant),
        "tool" | "function" => Some(Role::Tool),
        _ => None,
    }
}

/// Builds the prompt of a chat. If the last message is the assistant's and has no calls, the model
/// continues it, unless the server is `strict`.
pub fn chat_prompt(messages: impl IntoIterator<Item = RequestMessage>, strict: bool) -> Prompt {
    let messages: Vec<Message> = messages.into_iter().map(Message::from).collect();
    let continued = messages.last().is_some_and(|it| it.role == Role::Assistant && it.fields.is_empty());
    if continued && !strict { Prompt::Continue(messages) } else { Prompt::Chat(messages) }
}
