//! The pictures among attached files. The store keeps their files, and the latest decoded pictures
//! stay in memory, because every count of a chat's tokens needs them.

use std::cell::RefCell;

use rusqlite::{Connection, params};
use thermocline_engine::pictures::Picture;

use super::{
    AttachmentId, Store,
    error::{OperationContext, StoreError},
    rows,
};

/// Most bytes of decoded pixels in memory.
const MOST_PIXELS: usize = 256 << 20;

/// The latest decoded pictures, the oldest first.
#[derive(Debug, Default)]
pub(super) struct DecodedPictures(RefCell<Vec<Picture>>);

impl DecodedPictures {
    /// The picture of a file; `None` if the file is damaged.
    fn decode(&self, file: &[u8]) -> Option<Picture> {
        let mut known = self.0.borrow_mut();
        let is_of = |picture: &Picture| picture.file().is_ok_and(|it| *it.bytes == *file);
        if let Some(at) = known.iter().position(is_of) {
            let picture = known.remove(at);
            known.push(picture.clone());
            return Some(picture);
        }
        let picture = Picture::decode(file).inspect_err(|error| tracing::warn!(%error, "a stored picture")).ok()?;
        known.push(picture.clone());
        let mut bytes: usize = known.iter().map(|picture| picture.rgb().len()).sum();
        while bytes > MOST_PIXELS && known.len() > 1 {
            bytes -= known.remove(0).rgb().len();
        }
        Some(picture)
    }
}

/// Adds a picture's file to an attachment, after its other pictures.
pub(super) fn insert(db: &Connection, attachment: AttachmentId, file: &[u8]) -> Result<(), StoreError> {
    let sql = "INSERT INTO picture (attachment, file) SELECT id, ?2 FROM attachment WHERE id = ?1";
    db.execute(sql, params![attachment.0, file]).during("attaching a picture")?;
    Ok(())
}

impl Store {
    /// The files of an attachment's pictures.
    pub fn picture_files(&self, id: AttachmentId) -> Result<Vec<Vec<u8>>, StoreError> {
        let sql = "SELECT file FROM picture WHERE attachment = ?1 ORDER BY id";
        rows(&self.db, "reading a picture", sql, [id.0], |row| row.get(0))
    }

    /// The pictures of an attachment, without those whose files are damaged.
    pub fn pictures(&self, id: AttachmentId) -> Result<Vec<Picture>, StoreError> {
        Ok(self.picture_files(id)?.iter().filter_map(|file| self.decoded.decode(file)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attachment::{Document, DocumentKind},
        store::{NewMessage, import_export::FileFormat, import_export::markdown},
    };

    fn picture(shade: u8) -> Picture {
        Picture::from_rgb(4, 2, vec![shade; 24]).unwrap()
    }

    fn attached(store: &mut Store, chat: crate::store::ChatId, shade: u8) -> AttachmentId {
        store.attach(chat, &Document::of_picture("a.png".to_owned(), picture(shade))).unwrap()
    }

    #[test]
    fn pictures_are_found_by_their_attachments_even_if_an_id_is_used_again() {
        let (mut store, chat) = Store::with_chat();
        let first = attached(&mut store, chat, 1);
        assert_eq!(store.pictures(first).unwrap(), [picture(1)]);
        store.detach(first).unwrap();
        let second = attached(&mut store, chat, 2);
        assert_eq!((second, store.pictures(second).unwrap()), (first, vec![picture(2)]));
        let about = store.attachments(chat).unwrap().remove(0);
        assert_eq!((about.kind, about.is_picture()), (DocumentKind::Picture, true));
    }

    #[test]
    fn damaged_files_and_other_attachments_are_no_pictures() {
        let (mut store, chat) = Store::with_chat();
        let id = attached(&mut store, chat, 1);
        store.db.execute("UPDATE picture SET file = x'0102'", []).unwrap();
        assert_eq!(store.pictures(id).unwrap(), []);
        let text = Document::read("a.txt".to_owned(), DocumentKind::Text, b"words").unwrap();
        let id = store.attach(chat, &text).unwrap();
        assert_eq!(store.pictures(id).unwrap(), []);
    }

    #[test]
    fn pictures_come_back_from_files_of_chats_and_go_with_copies_of_a_message() {
        let (mut store, chat) = Store::with_chat();
        attached(&mut store, chat, 3);
        let asked = store.add_message(chat, None, &NewMessage::user("What is it?")).unwrap();
        store.send_attachments(chat, asked).unwrap();
        let again = store.add_message(chat, None, &NewMessage::user("What is this?")).unwrap();
        store.copy_attachments(asked, again).unwrap();
        let files = store.documents(chat).unwrap();
        assert_eq!(files[&asked], files[&again]);
        assert_eq!(files[&asked][0].pictures, [picture(3)]);

        let json = store.export(&[chat]).unwrap();
        let (about, branch) = (store.chat(chat).unwrap(), store.branch(chat).unwrap());
        let text = markdown(&about, &branch, &files, true);
        for (format, file) in [(FileFormat::Json, json), (FileFormat::Markdown, text)] {
            let mut other = Store::in_memory().unwrap();
            let copy = other.import(format, &file).unwrap().added[0];
            let first = other.branch(copy).unwrap().remove(0).id;
            assert_eq!(other.documents(copy).unwrap()[&first][0].pictures, [picture(3)]);
        }
    }
}
