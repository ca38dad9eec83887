//! Conversations of the terminal in files, for `/save` and `/load`.

use std::{fs, path::Path};

use serde_json::{Value, json};
use thermocline_engine::{
    pictures::Picture,
    session::{Engine, Message, Role},
};

use crate::cli::attach::AttachedFiles;
use thermocline_chats::{
    attachment::Document,
    chat::chat_turns,
    store::{
        Speaker, Store,
        import_export::{
            FileFormat,
            markdown::{self, MarkdownMessage},
        },
    },
};
use thermocline_host::remote::picture_part;
use thermocline_terminal::failure::{Failure, Outcome};

/// The conversation as messages of a request of OpenAI's API. Pictures are data URLs of their
/// files.
pub fn json(transcript: &[Message]) -> Outcome<String> {
    let message = |message: &Message| -> Outcome<Value> {
        Ok(json!({ "role": message.role.name(), "content": content(message)? }))
    };
    let messages = transcript.iter().map(message).collect::<Outcome<Vec<_>>>()?;
    Ok(format!("{:#}\n", json!({ "messages": messages })))
}

fn content(message: &Message) -> Outcome<Value> {
    if message.pictures.is_empty() {
        return Ok(json!(message.content));
    }
    let files = message.pictures.iter().map(|picture| picture.file().map(|file| picture_part(&file)));
    let text = json!({ "type": "text", "text": message.content });
    Ok(files.chain([Ok(text)]).collect::<Result<Vec<_>, _>>()?.into())
}

/// The conversation as Markdown that can be read again. Pictures are attached files.
pub fn markdown(transcript: &[Message]) -> String {
    let document =
        |(at, picture): (usize, &Picture)| Document::of_picture(format!("picture {}", at + 1), picture.clone());
    let files: Vec<Vec<Document>> =
        transcript.iter().map(|message| message.pictures.iter().enumerate().map(document).collect()).collect();
    let said = transcript.iter().zip(&files).filter_map(|(message, files)| {
        let speaker = match message.role {
            Role::System | Role::Tool => return None,
            Role::User => Speaker::User,
            Role::Assistant => Speaker::Assistant,
        };
        Some(MarkdownMessage { speaker, model: None, content: &message.content, files })
    });
    let system = transcript.iter().find(|message| message.role == Role::System);
    markdown::write("", system.map_or("", |message| &*message.content), &said.collect::<Vec<_>>(), true)
}

/// A conversation that was read from a file.
pub struct LoadedConversation {
    /// The system prompt, or nothing.
    pub system: String,
    /// The messages.
    pub messages: Vec<Message>,
    /// Their files.
    pub files: AttachedFiles,
}

impl LoadedConversation {
    /// Reads the first chat of a file, JSON or Markdown, as `engine` can see it, or a server's
    /// model.
    pub fn open(path: &Path, engine: Option<&Engine>) -> Outcome<Self> {
        let text = fs::read_to_string(path).map_err(|error| Failure::read(path, error))?;
        let refused = |error: &dyn ToString| Failure::usage(format!("{}: {}", path.display(), error.to_string()));
        let mut store = Store::in_memory().map_err(|error| refused(&error))?;
        let format = FileFormat::from_path(path).unwrap_or(FileFormat::Markdown);
        let imported = store.import(format, &text).map_err(|error| refused(&error))?;
        let chat = *imported.added.first().ok_or_else(|| refused(&"expected a chat, got none"))?;
        let system = store.chat(chat).map_err(|error| refused(&error))?.system_prompt;
        let (files, branch, contents) = AttachedFiles::of_chat(store, chat, engine)?;
        let messages = chat_turns("", &branch.iter().collect::<Vec<_>>(), contents);
        Ok(LoadedConversation { system, messages, files })
    }
}
