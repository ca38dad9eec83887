//! Passages of attached files, found by the words of a question: full-text search, ranked by BM25.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    AttachmentId, ChatId, MessageId, Store,
    error::{OperationContext, StoreError},
    rows,
};
use crate::attachment::Passage;

/// Row id of a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PassageId(pub(super) i64);

/// A passage that fits a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPassage {
    /// Row id. Within a file, ids rise from beginning to end.
    pub id: PassageId,
    /// The file that contains the passage.
    pub attachment: AttachmentId,
    /// Name of the file.
    pub name: String,
    /// The passage.
    pub passage: Passage,
}

/// Largest number of words of a question that are searched.
const MOST_WORDS: usize = 64;

/// Adds a passage to a file, after its other passages.
pub(super) fn insert(db: &Connection, attachment: AttachmentId, passage: &Passage) -> Result<PassageId, StoreError> {
    const OPERATION: &str = "attaching a file";
    let sql = "INSERT INTO passage (attachment, place, text) VALUES (?1, ?2, ?3)";
    let mut insert = db.prepare_cached(sql).during(OPERATION)?;
    insert.execute(params![attachment.0, passage.place, passage.text]).during(OPERATION)?;
    let id = db.last_insert_rowid();
    index(db, id, &passage.text)?;
    Ok(PassageId(id))
}

/// Adds a passage with its former row id, if its file exists.
pub(super) fn restore(db: &Connection, id: i64, attachment: i64, place: &str, text: &str) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO passage (id, attachment, place, text)
        SELECT ?1, attachment.id, ?3, ?4 FROM attachment WHERE id = ?2";
    let added = db.execute(sql, params![id, attachment, place, text]).during("recovering attached files")?;
    if added == 1 { index(db, id, text) } else { Ok(()) }
}

/// Indexes a passage for [`Store::find_passages`].
fn index(db: &Connection, id: i64, text: &str) -> Result<(), StoreError> {
    const OPERATION: &str = "indexing a file";
    let sql = "INSERT INTO passage_text (rowid, words) VALUES (?1, ?2)";
    db.prepare_cached(sql).during(OPERATION)?.execute(params![id, apart(text)]).during(OPERATION)?;
    Ok(())
}

/// The passage with this index in a file.
pub(super) fn nth(db: &Connection, attachment: AttachmentId, index: usize) -> Result<Option<PassageId>, StoreError> {
    let sql = "SELECT id FROM passage WHERE attachment = ?1 ORDER BY id LIMIT 1 OFFSET ?2";
    let index = i64::try_from(index).unwrap_or(i64::MAX);
    let found = db.query_row(sql, [attachment.0, index], |row| row.get(0)).optional();
    Ok(found.during("reading a file")?.map(PassageId))
}

/// `true` for letters of scripts that do not separate words.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x3400..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x3FFFF)
}

/// `text` with each letter of such scripts as a word of its own.
fn apart(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unspaced(c) {
            words.extend([' ', c, ' ']);
        } else {
            words.push(c);
        }
    }
    words
}

/// The question as a query: any of its words, or any two adjacent letters in scripts without
/// spaces.
fn query(question: &str) -> String {
    let mut terms: Vec<String> = Vec::new();
    for word in question.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let letters: Vec<char> = word.chars().collect();
        for run in letters.chunk_by(|a, b| is_unspaced(*a) == is_unspaced(*b)) {
            if !is_unspaced(run[0]) || run.len() == 1 {
                terms.push(format!("\"{}\"", run.iter().collect::<String>()));
            } else {
                terms.extend(run.windows(2).map(|pair| format!("\"{} {}\"", pair[0], pair[1])));
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    terms.retain(|term| seen.insert(term.to_lowercase()));
    terms.truncate(MOST_WORDS);
    terms.join(" OR ")
}

impl Store {
    /// The passages of a file, from beginning to end.
    pub(super) fn passage_ids(&self, attachment: AttachmentId) -> Result<Vec<PassageId>, StoreError> {
        let sql = "SELECT id FROM passage WHERE attachment = ?1 ORDER BY id";
        rows(&self.db, "reading a file", sql, [attachment.0], |row| Ok(PassageId(row.get(0)?)))
    }

    /// The passages that the model was given with messages of a chat.
    pub(super) fn given(&self, chat: ChatId) -> Result<Vec<(MessageId, PassageId)>, StoreError> {
        let sql = "SELECT given.message, given.passage FROM given JOIN message ON message.id = given.message
            WHERE message.chat = ?1 ORDER BY given.message, given.passage";
        let read = |row: &Row<'_>| Ok((MessageId(row.get(0)?), PassageId(row.get(1)?)));
        rows(&self.db, "reading the model's input", sql, [chat.0], read)
    }

    /// The passages of these files that fit `question` best, best first. If none contains a word of
    /// the question, the beginnings of the files.
    pub fn find_passages(
        &self,
        files: &[AttachmentId],
        question: &str,
        most: usize,
    ) -> Result<Vec<FoundPassage>, StoreError> {
        const OPERATION: &str = "searching in files";
        let files: Vec<String> = files.iter().map(|file| file.0.to_string()).collect();
        let of = files.join(", ");
        let read = |row: &Row<'_>| {
            Ok(FoundPassage {
                id: PassageId(row.get(0)?),
                attachment: AttachmentId(row.get(1)?),
                name: row.get(2)?,
                passage: Passage { place: row.get(3)?, text: row.get(4)? },
            })
        };
        let columns = "passage.id, attachment.id, attachment.name, passage.place, passage.text";
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let terms = query(question);
        if !terms.is_empty() {
            let sql = format!(
                "SELECT {columns} FROM passage_text JOIN passage ON passage.id = passage_text.rowid
                JOIN attachment ON attachment.id = passage.attachment
                WHERE passage_text MATCH ?1 AND attachment.id IN ({of}) ORDER BY bm25(passage_text), passage.id LIMIT ?2"
            );
            let found = rows(&self.db, OPERATION, &sql, params![terms, most], read)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let sql = format!(
            "SELECT {columns} FROM passage JOIN attachment ON attachment.id = passage.attachment
            WHERE attachment.id IN ({of})
            ORDER BY row_number() OVER (PARTITION BY attachment.id ORDER BY passage.id), attachment.id LIMIT ?1"
        );
        rows(&self.db, OPERATION, &sql, [most], read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachment::{Document, DocumentKind, fixtures::haystack};

    #[test]
    fn find_passages_ranks_the_passage_that_answers_first() {
        let (mut store, chat) = Store::with_chat();
        let mut attach = |name: &str, text: &str| {
            let document = Document::read(name.to_owned(), DocumentKind::Text, text.as_bytes()).unwrap();
            store.attach(chat, &document).unwrap()
        };
        let boats = attach("boats.txt", &haystack("The harbour master is called Ódin Þór and keeps a walrus."));
        let other = attach("other.txt", &haystack("The harbour master keeps a walrus, too."));
        let cjk = attach("cjk.txt", &haystack("港の主人は海象を飼っている。"));
        let find = |files: &[AttachmentId], question: &str| store.find_passages(files, question, 3).unwrap();
        let found = find(&[boats], "Who is the harbour master, and which animals, walruses or seals, does he keep?");
        assert!(found[0].passage.text.contains("walrus") && found.len() == 3, "{found:?}");
        assert_eq!((&*found[0].name, &*found[0].passage.place), ("boats.txt", "lines 397–405"));
        assert!(find(&[boats], "odin \"AND* NEAR(").first().unwrap().passage.text.contains("Ódin"));
        assert!(find(&[other], "walrus").iter().all(|found| found.attachment == other), "of that file only");
        assert!(find(&[boats, cjk], "海象はどこ？")[0].passage.text.contains("海象"));
        // No passage contains a word of the question, so the beginnings are found.
        let begin: Vec<(AttachmentId, String)> =
            find(&[boats, other], "xyzzy").into_iter().map(|it| (it.attachment, it.passage.place)).collect();
        assert_eq!(begin[0].0, boats);
        assert_eq!(begin[1].0, other);
        assert!(begin[0].1.starts_with("lines 1–") && begin[1].1.starts_with("lines 1–"), "{begin:?}");
        assert!(find(&[], "walrus").is_empty());
    }
}
