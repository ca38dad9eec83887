//! A request for an answer.

use serde_json::{Map, Value, json};
use thermocline_engine::pictures::PictureFile;

/// Messages, tools and settings for one answer, as OpenAI's chat completions expect them. The
/// server chooses missing settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemoteRequest {
    /// Name of the model on the server.
    pub model: String,
    /// Messages in OpenAI's form.
    pub messages: Vec<Value>,
    /// Definitions of tools in OpenAI's form.
    pub tools: Vec<Value>,
    /// Other fields: `temperature`, `max_tokens`, `stop` and so on.
    pub settings: Map<String, Value>,
}

impl RemoteRequest {
    /// Adds a text message.
    pub fn push(&mut self, role: &str, content: &str) {
        self.messages.push(json!({ "role": role, "content": content }));
    }

    /// Adds a message with pictures before its text.
    pub fn push_with_pictures(&mut self, role: &str, content: &str, pictures: &[PictureFile]) {
        if pictures.is_empty() {
            return self.push(role, content);
        }
        let picture = |file: &PictureFile| json!({ "type": "image_url", "image_url": { "url": file.data_url() } });
        let text = json!({ "type": "text", "text": content });
        let parts: Vec<Value> = pictures.iter().map(picture).chain([text]).collect();
        self.messages.push(json!({ "role": role, "content": parts }));
    }

    /// Adds a setting, if `value` is present.
    pub fn set<T: Into<Value>>(&mut self, name: &str, value: Option<T>) {
        if let Some(value) = value {
            self.settings.insert(name.to_owned(), value.into());
        }
    }

    /// Builds the body of a streamed request.
    pub(super) fn body(&self) -> Value {
        let mut body = self.settings.clone();
        body.insert("model".to_owned(), json!(self.model));
        body.insert("messages".to_owned(), json!(self.messages));
        if !self.tools.is_empty() {
            body.insert("tools".to_owned(), json!(self.tools));
        }
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        Value::Object(body)
    }
}
