//! The form in which chats are written to a file and read from it.

use serde::{Deserialize, Serialize};

use super::{
    Unreadable,
    attached::{FileAttachment, FilePassageAt},
};
use crate::store::{MessageTools, Speaker, now};

/// The JSON file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct File {
    pub format: String,
    pub version: u32,
    pub chats: Vec<FileChat>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FileChat {
    pub title: String,
    pub created: i64,
    pub updated: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default)]
    pub system_prompt: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<serde_json::Value>,
    /// Whether the model may call tools.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tools: bool,
    /// Index of the last message of the visible branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<usize>,
    pub messages: Vec<FileMessage>,
    /// True if the file does not say when the chat was created.
    #[serde(skip)]
    pub undated: bool,
}

/// The readable chats of a file.
pub(super) struct ReadFile {
    pub chats: Vec<FileChat>,
    pub unreadable: Unreadable,
}

impl ReadFile {
    /// A file that could be read completely.
    pub fn whole(chats: Vec<FileChat>) -> Self {
        ReadFile { chats, unreadable: Unreadable::default() }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FileMessage {
    /// Index of an earlier message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    pub role: String,
    pub content: String,
    pub created: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub edited: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<serde_json::Value>,
    /// Its tool calls, or the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<MessageTools>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<FileAttachment>,
    /// Passages that the model was given with this message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<FilePassageAt>,
}

impl FileMessage {
    /// A complete message without files, below the message with index `parent`.
    pub fn new(parent: Option<usize>, speaker: Speaker, content: &str, created: i64) -> Self {
        FileMessage {
            parent,
            role: speaker.name().to_owned(),
            content: content.to_owned(),
            created,
            ..FileMessage::default()
        }
    }
}

impl FileChat {
    /// An empty chat created now, for a file without times.
    pub fn now() -> Self {
        let now = now();
        FileChat { created: now, updated: now, undated: true, ..FileChat::default() }
    }

    /// Appends to the system prompt.
    pub fn instruct(&mut self, words: &str) {
        if !self.system_prompt.is_empty() {
            self.system_prompt.push_str("\n\n");
        }
        self.system_prompt.push_str(words);
    }

    /// Appends a message after the last one.
    pub fn add_message(&mut self, speaker: Speaker, model: Option<&str>, content: &str) {
        let parent = self.messages.len().checked_sub(1);
        let message = FileMessage::new(parent, speaker, content, self.created);
        self.messages.push(FileMessage { model: model.map(str::to_owned), ..message });
    }
}
