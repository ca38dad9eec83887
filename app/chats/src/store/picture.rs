//! The pictures among attached files. The store keeps their files and never decodes pixels, because
//! the window reads chats on the thread that draws. The engine decodes a picture before it computes
//! the picture.

use std::cell::RefCell;

use rusqlite::{Connection, params};
use thermocline_engine::pictures::Picture;

use super::{
    AttachmentId, Store,
    error::{OperationContext, StoreError},
    rows,
};

/// Most bytes of files in memory, with the bare files that were sent to servers.
const MOST_BYTES: usize = 256 << 20;

/// The pictures that were read latest, the oldest first. They remember their hashes, so that
/// later turns of a chat decode no picture again.
#[derive(Debug)]
pub(super) struct KnownPictures {
    all: RefCell<Vec<Picture>>,
    most_bytes: usize,
}

impl Default for KnownPictures {
    fn default() -> Self {
        KnownPictures { all: RefCell::default(), most_bytes: MOST_BYTES }
    }
}

impl KnownPictures {
    /// The picture of a file; `None` if the file is damaged.
    fn picture(&self, file: &[u8]) -> Option<Picture> {
        let mut known = self.all.borrow_mut();
        let is_of = |picture: &Picture| picture.file().is_ok_and(|it| *it.bytes == *file);
        let found = known.iter().position(is_of).map(|at| known.remove(at));
        let read = || Picture::deferred(file).inspect_err(|error| tracing::warn!(%error, "a stored picture")).ok();
        let picture = found.or_else(read)?;
        known.push(picture.clone());
        drop(known);
        self.forget_oldest();
        Some(picture)
    }

    /// Forgets the oldest pictures until the others are within the limit. A request to a server may
    /// have added bare files since the pictures were read.
    pub(super) fn forget_oldest(&self) {
        let mut known = self.all.borrow_mut();
        let mut held: usize = known.iter().map(Picture::held_bytes).sum();
        while held > self.most_bytes && known.len() > 1 {
            // Another thread may have added the bare file meanwhile.
            held = held.saturating_sub(known.remove(0).held_bytes());
        }
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

    /// The pictures of an attachment, not decoded yet. Files with damaged headers are left out.
    pub fn pictures(&self, id: AttachmentId) -> Result<Vec<Picture>, StoreError> {
        Ok(self.picture_files(id)?.iter().filter_map(|file| self.known_pictures.picture(file)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attachment::{Document, DocumentKind},
        store::{MessageState, NewMessage, StreamingMessage, import_export::FileFormat, import_export::markdown},
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

    /// The answer of a server ends with the pictures within the limit, before the next is read.
    #[test]
    fn bare_files_count_once_an_answer_has_ended() {
        let (mut store, chat) = Store::with_chat();
        let ids = [1, 2].map(|shade| attached(&mut store, chat, shade));
        let read = ids.map(|id| store.pictures(id).unwrap().remove(0));
        let held = |store: &Store| store.known_pictures.all.borrow().len();
        store.known_pictures.most_bytes = read.iter().map(Picture::held_bytes).sum();
        store.known_pictures.forget_oldest();
        assert_eq!(held(&store), 2, "both are within the limit");
        read[1].bare_file().unwrap();
        let mut answer = StreamingMessage::begin(&mut store, chat, None, None).unwrap();
        answer.finish(&mut store, MessageState::Complete, None).unwrap();
        assert_eq!((held(&store), store.known_pictures.all.borrow()[0] == read[1]), (1, true));
    }

    #[test]
    fn damaged_files_and_other_attachments_are_no_pictures() {
        let (mut store, chat) = Store::with_chat();
        let id = attached(&mut store, chat, 1);
        store.db.execute("UPDATE picture SET file = x'0102'", []).unwrap();
        assert_eq!(store.pictures(id).unwrap(), []);
        // The store does not see damage behind the header. The engine finds it.
        let file = picture(1).file().unwrap().bytes;
        store.db.execute("UPDATE picture SET file = ?1", [&file[..file.len() - 20]]).unwrap();
        let read = store.pictures(id).unwrap();
        assert!(read[0].width() == 4 && read[0].rgb().is_err());
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
