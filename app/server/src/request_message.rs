//! A chat message in a protocol-independent form.

use std::mem;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thermocline_engine::{
    pictures::Picture,
    session::{Message, Prompt, Role},
    tokenizer::reasoning::{AnswerPart, transcript::TranscriptWriter},
};

use crate::{error::ApiError, picture_fetch::PictureFetch, served_model::ServedModel};

/// The address of a picture: a text, or an object with `url`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct PictureUrl(pub String);

impl TryFrom<Value> for PictureUrl {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, &'static str> {
        match value {
            Value::String(url) => Ok(PictureUrl(url)),
            Value::Object(mut object) => match object.remove("url") {
                Some(Value::String(url)) => Ok(PictureUrl(url)),
                _ => Err("an object with `url`, a data URL"),
            },
            _ => Err("a data URL, or an object with `url`"),
        }
    }
}

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
    /// Pictures before the text, as base64, data URLs or addresses.
    pub pictures: Vec<String>,
}

impl RequestMessage {
    /// Creates a message of text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        RequestMessage {
            role,
            content: content.into(),
            thoughts: String::new(),
            calls: Vec::new(),
            call_id: None,
            name: None,
            pictures: Vec::new(),
        }
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
        let pictures: usize = self.pictures.iter().map(String::len).sum();
        size_of::<Self>() + self.content.len() + self.thoughts.len() + calls + pictures
    }
}

/// The message without its pictures, which [`chat_prompt`] decodes.
impl From<RequestMessage> for Message {
    fn from(message: RequestMessage) -> Self {
        let RequestMessage { role, content, thoughts, calls, call_id, name, .. } = message;
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

/// Most pixels of the pictures of one request.
const MOST_PIXELS: usize = 48_000_000;

/// Held by the request whose picture is being decoded.
static DECODING: Mutex<()> = Mutex::new(());

/// How bodies are read.
#[derive(Debug, Clone, Default)]
pub struct ReadRules {
    /// Refuse what OpenAI's own server refuses.
    pub strict: bool,
    /// The pictures that the server may fetch.
    pub fetch: PictureFetch,
}

impl ReadRules {
    /// How bodies of requests to `model` are read.
    pub fn for_model(self, model: &ServedModel) -> Self {
        ReadRules { fetch: self.fetch.for_model(model), ..self }
    }
}

/// Builds the prompt of a chat. If the last message is the assistant's and has no calls, the model
/// continues it, unless the server is `strict`. The prompt of a first reading is empty.
///
/// # Errors
/// 400 for a picture that cannot be fetched or decoded, and for more than [`MOST_PIXELS`] in a
/// request.
pub fn chat_prompt(mut messages: Vec<RequestMessage>, strict: bool, fetch: &PictureFetch) -> Result<Prompt, ApiError> {
    fetch.replace_addresses(&mut messages)?;
    if fetch.is_first_reading() {
        // The second reading decodes the pictures.
        return Ok(Prompt::Chat(Vec::new()));
    }
    let mut pixels = 0;
    let messages = messages.into_iter().map(|mut message| {
        let pictures = mem::take(&mut message.pictures);
        let pictures = pictures.iter().map(|text| decode(text, &mut pixels)).collect::<Result<_, _>>()?;
        Ok(Message { pictures, ..Message::from(message) })
    });
    let messages: Vec<Message> = messages.collect::<Result<_, ApiError>>()?;
    let continued = messages.last().is_some_and(|it| it.role == Role::Assistant && it.fields.is_empty());
    Ok(if continued && !strict { Prompt::Continue(messages) } else { Prompt::Chat(messages) })
}

/// Decodes a picture, and adds its pixels to the pixels of the request.
fn decode(text: &str, pixels: &mut usize) -> Result<Picture, ApiError> {
    let refused = |message: String| ApiError::invalid_field("messages", message);
    let picture = {
        // A decoder takes many times the memory of the body.
        let _one_at_a_time = DECODING.lock();
        // Hashes the pixels here so that the engine's thread does not have to.
        let hashed = |picture: Picture| picture.hash().map(|_| picture);
        Picture::from_base64(text).and_then(hashed).map_err(|error| refused(error.to_string()))?
    };
    *pixels += picture.width() * picture.height();
    match *pixels > MOST_PIXELS {
        true => Err(refused(format!("pictures: expected at most {MOST_PIXELS} pixels in a request, got more"))),
        false => Ok(picture),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_pictures_know_their_hashes() {
        let picture = Picture::from_rgb(2, 1, vec![9; 6]).unwrap();
        let decoded = decode(&picture.file().unwrap().data_url(), &mut 0).unwrap();
        // Nothing is computed for this text.
        assert!(format!("{decoded:?}").contains(&picture.hash().unwrap().to_string()), "{decoded:?}");
    }
}
