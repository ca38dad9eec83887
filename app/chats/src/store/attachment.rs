//! Attached files: their text in passages or their picture, and which parts the model was given.

use std::collections::HashMap;

use rusqlite::{Connection, Row, params};
use thermocline_engine::Error;

use super::{
    ChatId, MessageId, Store,
    error::{OperationContext, StoreError},
    one,
    passage::{self, PassageId},
    picture, rows,
};
use crate::attachment::{Document, DocumentKind, Passage};

/// Row id of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub(super) i64);

/// An attached file without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Row id.
    pub id: AttachmentId,
    /// The message it is attached to; `None`: the message being written.
    pub message: Option<MessageId>,
    /// File name.
    pub name: String,
    /// Format of the file.
    pub kind: DocumentKind,
    /// Size of its text in bytes.
    pub size: usize,
    /// Size of its pictures' files in bytes.
    pub picture_size: usize,
    /// Number of tokens, and the key of the model that they were counted for.
    pub tokens: Option<(usize, String)>,
    /// `true` if the model was given the whole file, `false` if not; `None` before the choice.
    pub whole: Option<bool>,
}

impl Attachment {
    /// True if it has pictures: it is one, or a PDF with pages of pictures.
    pub fn has_pictures(&self) -> bool {
        self.picture_size > 0
    }

    /// True if it has pictures and no text.
    pub fn is_picture(&self) -> bool {
        self.has_pictures() && self.size == 0
    }

    /// Its number of tokens for the model with this key, if counted.
    pub fn tokens_for(&self, model: &str) -> Option<usize> {
        self.tokens.as_ref().filter(|(_, key)| key == model).map(|(tokens, _)| *tokens)
    }
}

/// A part of a file that the model was given with a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// File name.
    pub name: String,
    /// The passage; `None`: the whole file.
    pub passage: Option<Passage>,
}

/// Columns, as [`Attachment::read`] expects them.
const COLUMNS: &str = "attachment.id, message, name, kind, tokens, counted_by, whole,
    (SELECT coalesce(sum(octet_length(text)), 0) FROM passage WHERE attachment = attachment.id),
    (SELECT coalesce(sum(octet_length(file)), 0) FROM picture WHERE attachment = attachment.id)";

impl Attachment {
    fn read(row: &Row<'_>) -> rusqlite::Result<Attachment> {
        let tokens = row.get::<_, Option<i64>>(4)?.and_then(|tokens| usize::try_from(tokens).ok());
        Ok(Attachment {
            id: AttachmentId(row.get(0)?),
            message: row.get::<_, Option<i64>>(1)?.map(MessageId),
            name: row.get(2)?,
            kind: DocumentKind::from_name(&row.get::<_, String>(3)?).unwrap_or(DocumentKind::Text),
            size: usize::try_from(row.get::<_, i64>(7)?).unwrap_or(0),
            picture_size: usize::try_from(row.get::<_, i64>(8)?).unwrap_or(0),
            tokens: tokens.zip(row.get(5)?),
            whole: row.get(6)?,
        })
    }
}

/// Adds a file to a message, or to the message being written.
pub(super) fn insert(
    db: &Connection,
    chat: ChatId,
    message: Option<MessageId>,
    document: &Document,
) -> Result<AttachmentId, StoreError> {
    const OPERATION: &str = "attaching a file";
    let sql = "INSERT INTO attachment (chat, message, name, kind) VALUES (?1, ?2, ?3, ?4)";
    let message = message.map(|message| message.0);
    db.execute(sql, params![chat.0, message, document.name, document.kind.name()]).during(OPERATION)?;
    let id = AttachmentId(db.last_insert_rowid());
    for passage in &document.passages {
        passage::insert(db, id, passage)?;
    }
    for picture in &document.pictures {
        let refused = |error: Error| StoreError::Import {
            what: format!("the picture {}", document.name),
            expected: "pixels that can be encoded",
            got: error.to_string(),
        };
        picture::insert(db, id, &picture.file().map_err(refused)?.bytes)?;
    }
    Ok(id)
}

/// Records whether the model was given the whole file.
pub(super) fn set_whole(db: &Connection, id: AttachmentId, whole: Option<bool>) -> Result<(), StoreError> {
    let sets = db.execute("UPDATE attachment SET whole = ?2 WHERE id = ?1", params![id.0, whole]);
    one(sets.during("recording the model's input")?, "attachment", id.0)
}

/// Records a passage that the model was given with a message.
pub(super) fn give(db: &Connection, message: MessageId, passage: PassageId) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO given (message, passage) VALUES (?1, ?2)";
    db.execute(sql, [message.0, passage.0]).during("recording the model's input")?;
    Ok(())
}

impl Store {
    /// Adds a file to the message being written in a chat.
    pub fn attach(&mut self, chat: ChatId, document: &Document) -> Result<AttachmentId, StoreError> {
        self.transaction("attaching a file", |db| insert(db, chat, None, document))
    }

    /// Removes a file.
    pub fn detach(&mut self, id: AttachmentId) -> Result<(), StoreError> {
        const OPERATION: &str = "removing a file";
        one(self.db.execute("DELETE FROM attachment WHERE id = ?1", [id.0]).during(OPERATION)?, "attachment", id.0)
    }

    /// The files of a chat, in the order they were attached.
    pub fn attachments(&self, chat: ChatId) -> Result<Vec<Attachment>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM attachment WHERE chat = ?1 ORDER BY attachment.id");
        rows(&self.db, "reading the files of a chat", &sql, [chat.0], Attachment::read)
    }

    /// The text of a file.
    pub fn attached(&self, id: AttachmentId) -> Result<Vec<Passage>, StoreError> {
        let sql = "SELECT place, text FROM passage WHERE attachment = ?1 ORDER BY id";
        let read = |row: &Row<'_>| Ok(Passage { place: row.get(0)?, text: row.get(1)? });
        rows(&self.db, "reading a file", sql, [id.0], read)
    }

    /// A file as it was attached.
    pub(super) fn document(&self, file: Attachment) -> Result<Document, StoreError> {
        let (passages, pictures) = (self.attached(file.id)?, self.pictures(file.id)?);
        Ok(Document { name: file.name, kind: file.kind, passages, pictures })
    }

    /// Attaches the files of the message being written to `message`.
    pub fn send_attachments(&mut self, chat: ChatId, message: MessageId) -> Result<(), StoreError> {
        let sql = "UPDATE attachment SET message = ?2 WHERE chat = ?1 AND message IS NULL";
        self.db.execute(sql, [chat.0, message.0]).during("sending files")?;
        Ok(())
    }

    /// Copies the files of one message to another message, its next version.
    pub fn copy_attachments(&mut self, from: MessageId, to: MessageId) -> Result<(), StoreError> {
        const OPERATION: &str = "copying the files of a message";
        let sql = "SELECT chat FROM message WHERE id = ?1";
        let chat = ChatId(self.db.query_row(sql, [to.0], |row| row.get(0)).during(OPERATION)?);
        let files = self.attachments(chat)?.into_iter().filter(|file| file.message == Some(from));
        let documents = files.map(|file| self.document(file)).collect::<Result<Vec<_>, StoreError>>()?;
        self.transaction(OPERATION, |db| {
            documents.iter().try_for_each(|document| insert(db, chat, Some(to), document).map(drop))
        })
    }

    /// Records the number of tokens of a file for the model with this key.
    pub fn set_attachment_tokens(&mut self, id: AttachmentId, model: &str, tokens: usize) -> Result<(), StoreError> {
        let sql = "UPDATE attachment SET tokens = ?2, counted_by = ?3 WHERE id = ?1";
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        self.db.execute(sql, params![id.0, tokens, model]).during("counting the tokens of a file")?;
        Ok(())
    }

    /// Records what the model is given with `message`: whole files, and passages of others.
    pub fn set_given(
        &mut self,
        message: MessageId,
        files: &[(AttachmentId, bool)],
        passages: &[PassageId],
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "recording the model's input";
        self.transaction(OPERATION, |db| {
            files.iter().try_for_each(|(id, whole)| set_whole(db, *id, Some(*whole)))?;
            db.execute("DELETE FROM given WHERE message = ?1", [message.0]).during(OPERATION)?;
            passages.iter().try_for_each(|passage| give(db, message, *passage))
        })
    }

    /// Sources of each message of a chat: files and passages, in the order in which the model was
    /// given them.
    pub fn sources(&self, chat: ChatId) -> Result<HashMap<MessageId, Vec<Source>>, StoreError> {
        let sql = "SELECT message, name, NULL, NULL, id AS file, 0 AS at FROM attachment WHERE chat = ?1 AND whole = 1 AND message IS NOT NULL
            UNION ALL SELECT given.message, name, place, text, attachment.id, passage.id FROM attachment
                JOIN passage ON passage.attachment = attachment.id JOIN given ON given.passage = passage.id WHERE chat = ?1
            ORDER BY at, file";
        let read = |row: &Row<'_>| {
            let place = row.get::<_, Option<String>>(2)?.zip(row.get::<_, Option<String>>(3)?);
            let passage = place.map(|(place, text)| Passage { place, text });
            Ok((MessageId(row.get(0)?), Source { name: row.get(1)?, passage }))
        };
        let mut sources: HashMap<MessageId, Vec<Source>> = HashMap::new();
        for (message, source) in rows(&self.db, "reading the model's input", sql, [chat.0], read)? {
            sources.entry(message).or_default().push(source);
        }
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attachment::fixtures::haystack,
        store::{NewMessage, PassageId},
    };

    fn document(name: &str, text: &str) -> Document {
        Document::read(name.to_owned(), DocumentKind::Text, text.as_bytes()).unwrap()
    }

    #[test]
    fn attachments_follow_their_message_and_go_with_it() {
        let (mut store, chat) = Store::with_chat();
        let first = store.attach(chat, &document("a.txt", "one\ntwo\n")).unwrap();
        let second = store.attach(chat, &document("b.txt", "three\n")).unwrap();
        store.set_attachment_tokens(second, "m", 7).unwrap();
        let files = store.attachments(chat).unwrap();
        assert_eq!((&*files[0].name, files[0].size, files[0].message), ("a.txt", 8, None));
        assert_eq!((files[1].tokens_for("m"), files[1].tokens_for("other"), files[1].whole), (Some(7), None, None));
        store.detach(first).unwrap();
        assert!(store.detach(first).is_err() && store.attached(first).unwrap().is_empty());

        let message = store.add_message(chat, None, &NewMessage::user("x")).unwrap();
        store.send_attachments(chat, message).unwrap();
        store.set_given(message, &[(second, true)], &[]).unwrap();
        let other = store.add_message(chat, None, &NewMessage::user("y")).unwrap();
        store.copy_attachments(message, other).unwrap();
        let files = store.attachments(chat).unwrap();
        assert_eq!(
            files.iter().map(|it| (it.message, it.whole)).collect::<Vec<_>>(),
            [(Some(message), Some(true)), (Some(other), None)]
        );
        assert_eq!(store.attached(files[1].id).unwrap()[0].text, "three\n");
        assert_eq!(store.sources(chat).unwrap()[&message], [Source { name: "b.txt".to_owned(), passage: None }]);

        store.db.execute("DELETE FROM message WHERE id = ?1", [message.0]).unwrap();
        assert_eq!(store.attachments(chat).unwrap().len(), 1);
        let left: i64 = store.db.query_row("SELECT count(*) FROM passage", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 1, "its passages are gone with it");
    }

    #[test]
    fn given_passages_are_sources_and_are_replaced() {
        let (mut store, chat) = Store::with_chat();
        let file = store.attach(chat, &document("a.txt", &haystack("The walrus sings."))).unwrap();
        let message = store.add_message(chat, None, &NewMessage::user("x")).unwrap();
        store.send_attachments(chat, message).unwrap();
        let found = store.find_passages(&[file], "Does a walrus sing?", 3).unwrap();
        let ids: Vec<PassageId> = found.iter().map(|found| found.id).collect();
        store.set_given(message, &[(file, false)], &ids).unwrap();
        store.set_given(message, &[(file, false)], &ids[..1]).unwrap();
        let sources = store.sources(chat).unwrap().remove(&message).unwrap();
        assert_eq!((sources.len(), sources[0].passage.as_ref()), (1, Some(&found[0].passage)));
        assert!(found[0].passage.text.contains("walrus"));
    }
}
