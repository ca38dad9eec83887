//! A request for an answer.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use thermocline_engine::{
    Error,
    pictures::{Picture, PictureFile},
};

/// Messages, tools and settings for one answer, as OpenAI's chat completions expect them. The
/// server chooses missing settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemoteRequest {
    /// Name of the model on the server.
    pub model: String,
    /// Messages in OpenAI's form, without pictures.
    pub messages: Vec<Value>,
    /// The pictures of messages, by the index of their message.
    pictures: HashMap<usize, Vec<Picture>>,
    /// Definitions of tools in OpenAI's form.
    pub tools: Vec<Value>,
    /// Other fields: `temperature`, `max_tokens`, `stop` and so on.
    pub settings: Map<String, Value>,
}

impl RemoteRequest {
    /// A request to `model` without messages.
    pub fn new(model: impl Into<String>) -> Self {
        RemoteRequest { model: model.into(), ..RemoteRequest::default() }
    }

    /// Adds a text message.
    pub fn push(&mut self, role: &str, content: &str) {
        self.messages.push(json!({ "role": role, "content": content }));
    }

    /// Adds a message with pictures before its text.
    pub fn push_with_pictures(&mut self, role: &str, content: &str, pictures: Vec<Picture>) {
        if !pictures.is_empty() {
            self.pictures.insert(self.messages.len(), pictures);
        }
        self.push(role, content);
    }

    /// Adds a setting, if `value` is present.
    pub fn set<T: Into<Value>>(&mut self, name: &str, value: Option<T>) {
        if let Some(value) = value {
            self.settings.insert(name.to_owned(), value.into());
        }
    }

    /// Builds the body of a streamed request. Pictures take up to a second each.
    ///
    /// # Errors
    /// The errors of [`Picture::bare_file`].
    pub(super) fn body(&self) -> Result<Value, Error> {
        let mut body = self.settings.clone();
        body.insert("model".to_owned(), json!(self.model));
        let mut messages = self.messages.clone();
        for (at, pictures) in &self.pictures {
            let text = json!({ "type": "text", "text": messages[*at]["content"] });
            let parts = pictures.iter().map(part).chain([Ok(text)]).collect::<Result<Vec<_>, _>>()?;
            messages[*at]["content"] = parts.into();
        }
        body.insert("messages".to_owned(), messages.into());
        if !self.tools.is_empty() {
            body.insert("tools".to_owned(), json!(self.tools));
        }
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        Ok(Value::Object(body))
    }
}

/// A picture as a part of a message. Only the pixels are sent.
fn part(picture: &Picture) -> Result<Value, Error> {
    picture.bare_file().map(|file| picture_part(&file))
}

/// A picture's file as a part of a message in OpenAI's form.
pub fn picture_part(file: &PictureFile) -> Value {
    json!({ "type": "image_url", "image_url": { "url": file.data_url() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_sent_without_the_metadata_of_their_files() {
        let pixels = Picture::from_rgb(4, 2, (0..24).collect()).unwrap();
        let mut png = pixels.file().unwrap().bytes.to_vec();
        // A chunk of text after the header.
        drop(png.splice(33..33, *b"\0\0\0\x0etEXtPlace\0Bonn, DE\x87\xa4\x6d\x2f"));
        let picture = Picture::decode(&png).unwrap();
        assert_eq!(*picture.file().unwrap().bytes, *png);

        let mut request = RemoteRequest::new("m");
        request.push("system", "Be brief.");
        request.push_with_pictures("user", "Where is it?", vec![picture.clone(), pixels]);
        request.push_with_pictures("assistant", "There.", Vec::new());
        let body = request.body().unwrap();
        let parts = &body["messages"][1]["content"];
        for part in &parts.as_array().unwrap()[..2] {
            let sent = Picture::from_base64(part["image_url"]["url"].as_str().unwrap()).unwrap();
            assert_eq!(sent, picture);
            assert!(!sent.file().unwrap().bytes.windows(4).any(|bytes| bytes == b"Bonn"));
        }
        assert_eq!(parts[2], json!({ "type": "text", "text": "Where is it?" }));
        assert_eq!(body["messages"][2], json!({ "role": "assistant", "content": "There." }));
    }
}
