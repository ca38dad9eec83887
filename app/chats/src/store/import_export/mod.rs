//! Import and export of chats: [`markdown`] for people, and JSON with every version of every
//! message for programs. Both can be imported. So can Markdown transcripts of other programs
//! ([`transcript`]), the `conversations.json` of ChatGPT and Claude ([`conversations`]), and
//! requests of OpenAI's API ([`openai`]).
//! [`file`] is the form of the data in between. Attached files are in both formats ([`attached`]).
//! Chats that already exist are not added again ([`known`]).

mod attached;
mod conversations;
mod file;
mod known;
pub mod markdown;
mod openai;
mod transcript;

use std::{collections::HashMap, path::Path};

use rusqlite::Transaction;

use self::{
    file::{File, FileChat, FileMessage, ReadFile},
    markdown::MarkdownMessage,
};
use super::{
    Chat, ChatId, MessageId, MessageState, NewMessage, Speaker, Store, StoreError, StoredMessage, chat,
    error::OperationContext, message,
};
use crate::attachment::Document;

/// Value of the JSON file's `format`.
const FORMAT: &str = "thermocline.chats";
const VERSION: u32 = 1;

const OPERATION: &str = "importing chats";

/// Format of a file of chats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Thermocline's JSON.
    Json,
    /// Markdown of any program.
    Markdown,
}

impl FileFormat {
    /// File name extensions.
    pub const fn extensions(self) -> &'static [&'static str] {
        match self {
            FileFormat::Json => &["json"],
            FileFormat::Markdown => &["md", "markdown"],
        }
    }

    /// The format that belongs to a file's extension.
    pub fn from_path(path: &Path) -> Option<FileFormat> {
        let extension = path.extension()?.to_str()?;
        let is = |form: &FileFormat| form.extensions().iter().any(|it| it.eq_ignore_ascii_case(extension));
        [FileFormat::Json, FileFormat::Markdown].into_iter().find(is)
    }
}

/// The result of an import.
#[derive(Debug, Default)]
pub struct ImportedChats {
    /// Added chats, in the order of the file.
    pub added: Vec<ChatId>,
    /// Chats that existed already.
    pub known: Vec<ChatId>,
    /// Parts that were left out.
    pub unreadable: Unreadable,
}

/// Parts of another service's export that could not be read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// Number of whole chats.
    pub chats: usize,
    /// Number of messages in readable chats.
    pub messages: usize,
}

/// The visible branch as Markdown. With `comments` it can be imported exactly, and contains the
/// `files` of each message. Without, it contains only their names.
pub fn markdown(
    chat: &Chat,
    branch: &[StoredMessage],
    files: &HashMap<MessageId, Vec<Document>>,
    comments: bool,
) -> String {
    let said = branch.iter().map(|message| MarkdownMessage {
        speaker: message.speaker,
        model: message.result().map(|result| &*result.call.name).or(message.model.as_deref()),
        content: &message.content,
        files: files.get(&message.id).map_or(&[], Vec::as_slice),
    });
    let said: Vec<MarkdownMessage<'_>> = said.collect();
    markdown::write(&chat.title, &chat.system_prompt, &said, comments)
}

fn read_json(text: &str) -> Result<ReadFile, StoreError> {
    if text.trim_start().starts_with('[') {
        return conversations::read_list(text);
    }
    let not_json = |error: serde_json::Error| bad("the file", "chats as JSON", error);
    let object: serde_json::Value = serde_json::from_str(text).map_err(not_json)?;
    if let Some(read) = conversations::read_object(&object).or_else(|| openai::read(&object)) {
        return read;
    }
    let file: File = serde_json::from_str(text).map_err(not_json)?;
    if (&*file.format, file.version) != (FORMAT, VERSION) {
        let got = format!("{} {}", file.format, file.version);
        return Err(bad("the file", "format thermocline.chats, version 1", got));
    }
    Ok(ReadFile::whole(file.chats))
}

fn read_markdown(text: &str) -> Result<ReadFile, StoreError> {
    let mut chat = match markdown::read(text)? {
        Some(chat) => chat,
        None => transcript::read(text)?,
    };
    if chat.title.is_empty() {
        let words = chat.messages.iter().map(|message| chat::title(&message.content));
        chat.title = words.into_iter().find(|title| !title.is_empty()).unwrap_or_default();
    }
    Ok(ReadFile::whole(vec![chat]))
}

impl Store {
    /// Exports chats with all their branches as JSON.
    pub fn export(&self, chats: &[ChatId]) -> Result<String, StoreError> {
        let chats = chats.iter().map(|id| self.export_chat(*id)).collect::<Result<_, _>>()?;
        let file = File { format: FORMAT.to_owned(), version: VERSION, chats };
        serde_json::to_string_pretty(&file).map_err(|error| bad("the chats", "text that JSON can hold", error))
    }

    fn export_chat(&self, id: ChatId) -> Result<FileChat, StoreError> {
        let (chat, messages) = (self.chat(id)?, self.messages(id)?);
        let index: HashMap<MessageId, usize> = messages.iter().enumerate().map(|(at, it)| (it.id, at)).collect();
        let mut attached = self.export_attachments(id, &index)?;
        let json = |text: Option<String>| text.and_then(|text| serde_json::from_str(&text).ok());
        let messages = messages.into_iter().map(|message| FileMessage {
            parent: message.parent.and_then(|parent| index.get(&parent).copied()),
            role: message.speaker.name().to_owned(),
            content: message.content,
            created: message.created,
            state: (message.state != MessageState::Complete).then(|| message.state.name().to_owned()),
            edited: message.edited,
            model: message.model,
            stats: json(message.stats),
            tools: message.tools,
            attachments: attached.files.remove(&message.id).unwrap_or_default(),
            given: attached.given.remove(&message.id).unwrap_or_default(),
        });
        Ok(FileChat {
            title: chat.title,
            created: chat.created,
            updated: chat.updated,
            model: chat.model,
            system_prompt: chat.system_prompt,
            sampling: json(chat.sampling),
            tools: chat.tools,
            leaf: chat.leaf.and_then(|leaf| index.get(&leaf).copied()),
            messages: messages.collect(),
            undated: false,
        })
    }

    /// Imports the chats of a file: JSON written by [`Store::export`], another service's export, or
    /// a conversation as Markdown. Unreadable parts of another service's export are left out. Other
    /// files are imported completely, or not at all if any part is invalid. Chats that already
    /// exist are not added again.
    ///
    /// # Errors
    /// [`StoreError::Import`] names the invalid part.
    pub fn import(&mut self, form: FileFormat, text: &str) -> Result<ImportedChats, StoreError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let file = match form {
            FileFormat::Json => read_json(text)?,
            FileFormat::Markdown => read_markdown(text)?,
        };
        self.transaction(OPERATION, |db| {
            let mut imported = ImportedChats { unreadable: file.unreadable, ..ImportedChats::default() };
            for (n, chat) in file.chats.iter().enumerate() {
                match known::find(db, chat)? {
                    Some(known) => imported.known.push(known),
                    None => imported.added.push(insert(db, n, chat)?),
                }
            }
            Ok(imported)
        })
    }
}

/// Adds `chat`, which has the number `n` in its file.
fn insert(db: &Transaction<'_>, n: usize, chat: &FileChat) -> Result<ChatId, StoreError> {
    let sampling = chat.sampling.as_ref().map(ToString::to_string);
    let sql = "INSERT INTO chat (title, titled, created, updated, model, system_prompt, sampling, tools)
        VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let FileChat { title, created, updated, model, system_prompt, tools, .. } = chat;
    let values = rusqlite::params![title, created, updated, model, system_prompt, sampling, tools];
    db.execute(sql, values).during(OPERATION)?;
    let id = ChatId(db.last_insert_rowid());
    let mut messages: Vec<MessageId> = Vec::new();
    let mut attached = attached::Imported::new(n);
    for (m, from) in chat.messages.iter().enumerate() {
        let place = |part: &str| format!("{part} of message {m} of chat {n}");
        let earlier = |at: usize| {
            let parent = messages.get(at).copied();
            parent.ok_or_else(|| bad(place("parent"), "the index of an earlier message", at))
        };
        let parent = from.parent.map(earlier).transpose()?;
        let speaker = Speaker::from_name(&from.role)
            .ok_or_else(|| bad(place("role"), "user, assistant or tool", format!("{:?}", from.role)))?;
        let state = match from.state.as_deref() {
            None => MessageState::Complete,
            Some("streaming") => MessageState::Interrupted,
            Some(name) => MessageState::from_name(name)
                .ok_or_else(|| bad(place("state"), "a state that this program knows", format!("{name:?}")))?,
        };
        let new = NewMessage { speaker, content: from.content.clone(), state, model: from.model.clone() };
        let message = message::insert(db, id, parent, &new)?;
        let sql = "UPDATE message SET created = ?2, edited = ?3, stats = ?4, tools = ?5 WHERE id = ?1";
        let stats = from.stats.as_ref().map(ToString::to_string);
        let tools = from.tools.as_ref().and_then(|tools| serde_json::to_string(tools).ok());
        db.execute(sql, rusqlite::params![message.0, from.created, from.edited, stats, tools]).during(OPERATION)?;
        attached.add(db, id, m, message, from)?;
        messages.push(message);
    }
    let named = |at: usize| {
        let leaf = messages.get(at).copied();
        leaf.ok_or_else(|| bad(format!("leaf of chat {n}"), "the index of a message", at))
    };
    let leaf = chat.leaf.map(named).transpose()?.or_else(|| messages.last().copied());
    let sql = "UPDATE chat SET leaf = ?2, updated = ?3 WHERE id = ?1";
    db.execute(sql, rusqlite::params![id.0, leaf.map(|leaf| leaf.0), updated]).during(OPERATION)?;
    Ok(id)
}

fn bad(what: impl Into<String>, expected: &'static str, got: impl ToString) -> StoreError {
    StoreError::Import { what: what.into(), expected, got: got.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_restores_every_branch_of_an_export() {
        let mut store = Store::in_memory().unwrap();
        let chat = store.add_chat(Some("storyteller"), "Be brief.").unwrap();
        store.rename_chat(chat, "Frogs").unwrap();
        store.set_chat_sampling(chat, Some(r#"{"temperature":0.5}"#)).unwrap();
        let question = store.add_message(chat, None, &NewMessage::user("Tell me of a frog. 🐸")).unwrap();
        let answer = |text: &str, state| NewMessage {
            speaker: Speaker::Assistant,
            content: text.to_owned(),
            state,
            model: Some("storyteller".to_owned()),
        };
        let first = store.add_message(chat, Some(question), &answer("No.", MessageState::Stopped)).unwrap();
        store.add_message(chat, Some(question), &answer("Once upon a time", MessageState::Complete)).unwrap();
        store.add_edited_version(first, "No!").unwrap();

        let json = store.export(&[chat]).unwrap();
        let mut other = Store::in_memory().unwrap();
        let copies = other.import(FileFormat::Json, &json).unwrap().added;
        assert_eq!(other.export(&copies).unwrap(), json);
        let shown = &other.branch(copies[0]).unwrap()[1];
        assert_eq!((shown.version, shown.edited, shown.state), ((3, 3), true, MessageState::Stopped));
        assert_eq!(other.search("upon").unwrap().len(), 1);

        let text = markdown(&other.chat(copies[0]).unwrap(), &other.branch(copies[0]).unwrap(), &HashMap::new(), true);
        let want = "<!-- thermocline:chat -->\n# Frogs\n\n<!-- thermocline:system -->\n## System\n\nBe brief.\n\n\
            <!-- thermocline:user -->\n## User\n\nTell me of a frog. 🐸\n\n\
            <!-- thermocline:assistant -->\n## storyteller\n\nNo!\n";
        assert_eq!(text, want);
    }

    #[test]
    fn import_names_the_invalid_part_and_changes_nothing() {
        let mut store = Store::in_memory().unwrap();
        let with = |message: &str| {
            format!(
                r#"{{"format":"thermocline.chats","version":1,"chats":[{{"title":"t","created":1,"updated":2,
                "messages":[{{"role":"user","content":"a","created":3}},{message}]}}]}}"#
            )
        };
        for (json, part) in [
            ("[1, 2".to_owned(), "the file"),
            ("[]".to_owned(), "the file"),
            (r#"{"format":"other","version":1,"chats":[]}"#.to_owned(), "the file"),
            (with(r#"{"parent":1,"role":"user","content":"b","created":4}"#), "parent of message 1 of chat 0"),
            (with(r#"{"role":"king","content":"b","created":4}"#), "role of message 1 of chat 0"),
            (with(r#"{"state":"odd","role":"user","content":"b","created":4}"#), "state of message 1 of chat 0"),
        ] {
            let error = store.import(FileFormat::Json, &json).unwrap_err();
            assert!(matches!(&error, StoreError::Import { what, .. } if what == part), "{error}");
            assert!(store.chats().unwrap().is_empty());
        }
        let fine = with(r#"{"parent":0,"role":"assistant","content":"b","created":4}"#);
        assert_eq!(store.import(FileFormat::Json, &fine).unwrap().added.len(), 1);
    }
}
