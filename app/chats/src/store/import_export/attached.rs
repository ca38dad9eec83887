//! Attached files in exported chats: their text, and which parts the model was given.

use std::{borrow::Cow, collections::HashMap};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use thermocline_engine::pictures::{Picture, PictureFile};

use super::{FileMessage, bad};
use crate::{
    attachment::{Document, DocumentKind, Passage},
    store::{
        ChatId, MessageId, PassageId, Store, StoreError,
        attachment::{self, AttachmentId},
    },
};

/// The place of a passage that is a picture, in a file of chats. Its text is the picture's file in
/// base64.
const PICTURE: &str = "picture, base64";

/// The passages of a file in a file of chats: its text, then its pictures.
pub(super) fn written(document: &Document) -> Cow<'_, [Passage]> {
    if document.pictures.is_empty() {
        return Cow::Borrowed(&document.passages);
    }
    let files = document.pictures.iter().filter_map(|picture| picture.file().ok());
    let picture = |file: PictureFile| Passage { place: PICTURE.to_owned(), text: BASE64_STANDARD.encode(&file.bytes) };
    Cow::Owned(document.passages.iter().cloned().chain(files.map(picture)).collect())
}

/// An attached file in a file of chats.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileAttachment {
    pub name: String,
    kind: String,
    /// `true` if the model was given the whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    whole: Option<bool>,
    passages: Vec<Passage>,
}

/// Place of a passage: index of an earlier message, of its file, and of a passage in that file.
pub(super) type FilePassageAt = [usize; 3];

impl FileAttachment {
    /// A file without a record of what the model was given.
    pub fn new(name: String, kind: &str, passages: Vec<Passage>) -> Self {
        FileAttachment { name, kind: kind.to_owned(), whole: None, passages }
    }

    /// A picture, whose file in base64 is `file`.
    pub fn of_picture(name: String, file: &str) -> Self {
        let passage = Passage { place: PICTURE.to_owned(), text: file.to_owned() };
        FileAttachment::new(name, DocumentKind::Picture.name(), vec![passage])
    }

    fn document(&self) -> Result<Document, StoreError> {
        let kind = DocumentKind::from_name(&self.kind).unwrap_or(DocumentKind::Text);
        let refused = |got: String| bad(format!("a picture of {}", self.name), "a picture's file in base64", got);
        let picture = |passage: &Passage| {
            let file = BASE64_STANDARD.decode(passage.text.trim()).map_err(|error| refused(error.to_string()))?;
            Picture::decode(&file).map_err(|error| refused(error.to_string()))
        };
        let (pictures, passages): (Vec<Passage>, Vec<Passage>) =
            self.passages.iter().cloned().partition(|passage| passage.place == PICTURE);
        let pictures = pictures.iter().map(picture).collect::<Result<_, StoreError>>()?;
        Ok(Document { name: self.name.clone(), kind, passages, pictures })
    }
}

/// The files and given passages of a chat, as written to a file of chats.
pub(super) struct Exported {
    /// Files by message.
    pub files: HashMap<MessageId, Vec<FileAttachment>>,
    /// Given passages by message.
    pub given: HashMap<MessageId, Vec<FilePassageAt>>,
}

impl Store {
    /// The files of a chat's messages. `index` maps each message to its index in the exported file.
    pub(super) fn export_attachments(
        &self,
        chat: ChatId,
        index: &HashMap<MessageId, usize>,
    ) -> Result<Exported, StoreError> {
        let mut exported = Exported { files: HashMap::new(), given: HashMap::new() };
        let mut places: HashMap<PassageId, FilePassageAt> = HashMap::new();
        for file in self.attachments(chat)? {
            let Some((message, at)) = file.message.and_then(|message| Some((message, *index.get(&message)?))) else {
                continue;
            };
            let of_message = exported.files.entry(message).or_default();
            for (n, id) in self.passage_ids(file.id)?.into_iter().enumerate() {
                places.insert(id, [at, of_message.len(), n]);
            }
            let (kind, whole) = (file.kind.name(), file.whole);
            let document = self.document(file)?;
            let passages = written(&document).into_owned();
            of_message.push(FileAttachment { whole, ..FileAttachment::new(document.name, kind, passages) });
        }
        for (message, passage) in self.given(chat)? {
            exported.given.entry(message).or_default().extend(places.get(&passage));
        }
        Ok(exported)
    }

    /// The files of each message of a chat, with their text.
    pub fn documents(&self, chat: ChatId) -> Result<HashMap<MessageId, Vec<Document>>, StoreError> {
        let mut documents: HashMap<MessageId, Vec<Document>> = HashMap::new();
        for file in self.attachments(chat)? {
            let Some(message) = file.message else { continue };
            documents.entry(message).or_default().push(self.document(file)?);
        }
        Ok(documents)
    }
}

/// Files of one chat's messages that were imported so far.
pub(super) struct Imported {
    chat: usize,
    added: Vec<Vec<AttachmentId>>,
}

impl Imported {
    /// No files yet, for chat number `chat` of the file.
    pub fn new(chat: usize) -> Self {
        Imported { chat, added: Vec::new() }
    }

    /// Adds the files of message number `at`, and the record of what the model was given with it.
    pub fn add(
        &mut self,
        db: &Connection,
        chat: ChatId,
        at: usize,
        message: MessageId,
        from: &FileMessage,
    ) -> Result<(), StoreError> {
        let mut files = Vec::new();
        for file in &from.attachments {
            let id = attachment::insert(db, chat, Some(message), &file.document()?)?;
            attachment::set_whole(db, id, file.whole)?;
            files.push(id);
        }
        self.added.push(files);
        for [m, file, passage] in &from.given {
            let place = || format!("given passage of message {at} of chat {}", self.chat);
            let got = format!("[{m}, {file}, {passage}]");
            let id = self.added.get(*m).and_then(|files| files.get(*file));
            let passage = match id {
                Some(id) => crate::store::passage::nth(db, *id, *passage)?,
                None => None,
            };
            let passage = passage.ok_or_else(|| bad(place(), "a passage of a file of a message so far", got))?;
            attachment::give(db, message, passage)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attachment::fixtures::haystack,
        store::{
            NewMessage,
            import_export::{FileFormat, markdown},
        },
    };

    /// A chat with two files. The model was given passages of one of them.
    fn store() -> (Store, ChatId) {
        let (mut store, chat) = Store::with_chat();
        let document = |name: &str, text: &str| {
            Document::read(name.to_owned(), DocumentKind::from_path(name.as_ref()), text.as_bytes()).unwrap()
        };
        let long =
            store.attach(chat, &document("long.txt", &haystack("The walrus ```sings``` <!-- thermocline:user -->")));
        let short = store.attach(chat, &document("a.md", "# One\n\n```\ncode\n```\nno end")).unwrap();
        let asked = store.add_message(chat, None, &NewMessage::user("When?")).unwrap();
        store.send_attachments(chat, asked).unwrap();
        let found = store.find_passages(&[*long.as_ref().unwrap()], "walrus", 1).unwrap();
        store.set_given(asked, &[(long.unwrap(), false), (short, true)], &[found[0].id]).unwrap();
        store.add_message(chat, Some(asked), &NewMessage::user("And then?")).unwrap();
        (store, chat)
    }

    #[test]
    fn files_come_back_from_json_with_what_was_given() {
        let (store, chat) = store();
        let json = store.export(&[chat]).unwrap();
        let mut other = Store::in_memory().unwrap();
        let copy = other.import(FileFormat::Json, &json).unwrap().added[0];
        assert_eq!(other.export(&[copy]).unwrap(), json);
        let asked = other.branch(copy).unwrap()[0].id;
        let sources = other.sources(copy).unwrap().remove(&asked).unwrap();
        assert_eq!((&*sources[0].name, sources[0].passage.is_none()), ("a.md", true));
        assert!(sources[1].passage.as_ref().unwrap().text.contains("walrus"));
        let file = other.attachments(copy).unwrap()[0].id;
        assert!(
            other.find_passages(&[file], "walrus", 1).unwrap()[0].passage.text.contains("walrus"),
            "searchable again"
        );

        let broken = json
            .replace("\"given\": [\n            [\n              0,", "\"given\": [\n            [\n              9,");
        assert_ne!(broken, json);
        // If the chat exists already, its files are not read.
        let error = Store::in_memory().unwrap().import(FileFormat::Json, &broken).unwrap_err().to_string();
        assert!(error.starts_with("given passage of message 0 of chat 0: expected"), "{error}");
    }

    #[test]
    fn files_come_back_from_markdown_and_are_named_without_comments() {
        let (store, chat) = store();
        let (about, branch, files) =
            (store.chat(chat).unwrap(), store.branch(chat).unwrap(), store.documents(chat).unwrap());
        let text = markdown(&about, &branch, &files, true);
        let mut other = Store::in_memory().unwrap();
        let copy = other.import(FileFormat::Markdown, &text).unwrap().added[0];
        let again = other.documents(copy).unwrap();
        let copied = other.branch(copy).unwrap();
        assert_eq!(copied.iter().map(|it| &*it.content).collect::<Vec<_>>(), ["When?", "And then?"]);
        assert_eq!(again[&copied[0].id], files[&branch[0].id]);
        let plain = markdown(&about, &branch, &files, false);
        assert!(plain.contains("When?\n\n## Attached\n\nlong.txt\na.md\n") && !plain.contains("harbour"), "{plain}");
    }
}
