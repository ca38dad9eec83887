//! Vectors of passages. The store uses them to find passages with the meaning of a question. It
//! also records how passages were ranked.

use std::collections::HashMap;

use rusqlite::{Row, params};

use super::{
    AttachmentId, ChatId, FoundPassage, MessageId, PassageId, Store,
    error::{OperationContext, StoreError},
    rows,
};
use crate::attachment::Passage;

/// How passages were ranked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassageRanking {
    /// Name of the embedding model that ranked them. `None`: they were ranked by their words.
    pub model: Option<String>,
    /// Why an embedding model did not rank them, as a part of a sentence.
    pub failure: Option<String>,
}

impl PassageRanking {
    /// The ranking as the end of a sentence.
    pub fn words(&self) -> String {
        match self {
            PassageRanking { model: Some(model), .. } => format!("ranked by meaning with {model}"),
            PassageRanking { failure: Some(why), .. } => format!("ranked by words, because {why}"),
            PassageRanking { .. } => "ranked by words".to_owned(),
        }
    }
}

/// A list of files for SQL.
fn list(files: &[AttachmentId]) -> String {
    files.iter().map(|file| file.0.to_string()).collect::<Vec<_>>().join(", ")
}

impl Store {
    /// Passages of these files without a vector of the embedding model with this key.
    pub fn passages_without_vector(
        &self,
        files: &[AttachmentId],
        model: &str,
    ) -> Result<Vec<(PassageId, String)>, StoreError> {
        let sql = format!(
            "SELECT id, text FROM passage WHERE attachment IN ({})
            AND NOT EXISTS (SELECT 1 FROM passage_vector WHERE passage = passage.id AND model = ?1) ORDER BY id",
            list(files)
        );
        rows(&self.db, "reading vectors of a file", &sql, [model], |row| Ok((PassageId(row.get(0)?), row.get(1)?)))
    }

    /// Stores vectors of passages, and deletes the vectors of other models. Passages that were
    /// removed meanwhile are ignored.
    pub fn set_passage_vectors(&mut self, model: &str, vectors: &[(PassageId, Vec<f32>)]) -> Result<(), StoreError> {
        const OPERATION: &str = "storing vectors of a file";
        self.transaction(OPERATION, |db| {
            let sql = "INSERT OR REPLACE INTO passage_vector (passage, model, vector)
                SELECT id, ?2, ?3 FROM passage WHERE id = ?1";
            let mut insert = db.prepare_cached(sql).during(OPERATION)?;
            let sql = "DELETE FROM passage_vector WHERE passage = ?1 AND model <> ?2";
            let mut delete = db.prepare_cached(sql).during(OPERATION)?;
            for (passage, vector) in vectors {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                insert.execute(params![passage.0, model, bytes]).during(OPERATION)?;
                delete.execute(params![passage.0, model]).during(OPERATION)?;
            }
            Ok(())
        })
    }

    /// The passages of these files whose vectors are closest to `question`, closest first. `None`
    /// unless every passage has a vector of this model.
    pub fn find_passages_by_meaning(
        &self,
        files: &[AttachmentId],
        model: &str,
        question: &[f32],
        most: usize,
    ) -> Result<Option<Vec<FoundPassage>>, StoreError> {
        const OPERATION: &str = "searching in files";
        let sql = format!(
            "SELECT passage.id, vector FROM passage LEFT JOIN passage_vector ON passage = passage.id AND model = ?1
            WHERE attachment IN ({})",
            list(files)
        );
        let closeness = |bytes: Vec<u8>| {
            let (values, rest) = bytes.as_chunks::<4>();
            let fits = rest.is_empty() && values.len() == question.len();
            let products = values.iter().zip(question).map(|(value, other)| f32::from_le_bytes(*value) * other);
            fits.then(|| products.sum::<f32>())
        };
        let read = |row: &Row<'_>| Ok((PassageId(row.get(0)?), row.get::<_, Option<Vec<u8>>>(1)?.and_then(closeness)));
        let all: Option<Vec<(PassageId, f32)>> = rows(&self.db, OPERATION, &sql, [model], read)?
            .into_iter()
            .map(|(id, closeness)| Some((id, closeness?)))
            .collect();
        let Some(mut all) = all else { return Ok(None) };
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(most);
        let sql = "SELECT attachment.id, attachment.name, place, text FROM passage
            JOIN attachment ON attachment.id = attachment WHERE passage.id = ?1";
        let mut found = Vec::new();
        for (id, _) in all {
            let read = |row: &Row<'_>| {
                let passage = Passage { place: row.get(2)?, text: row.get(3)? };
                Ok(FoundPassage { id, attachment: AttachmentId(row.get(0)?), name: row.get(1)?, passage })
            };
            found.extend(rows(&self.db, OPERATION, sql, [id.0], read)?);
        }
        Ok(Some(found))
    }

    /// Records how the passages given with a message were ranked.
    pub fn set_ranking(&mut self, message: MessageId, ranking: &PassageRanking) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO ranking (message, model, failure) VALUES (?1, ?2, ?3)";
        let PassageRanking { model, failure } = ranking;
        self.db.execute(sql, params![message.0, model, failure]).during("recording the model's input")?;
        Ok(())
    }

    /// How the passages given with the messages of a chat were ranked.
    pub fn rankings(&self, chat: ChatId) -> Result<HashMap<MessageId, PassageRanking>, StoreError> {
        let sql = "SELECT message, ranking.model, failure FROM ranking JOIN message ON message.id = message
            WHERE message.chat = ?1";
        let read =
            |row: &Row<'_>| Ok((MessageId(row.get(0)?), PassageRanking { model: row.get(1)?, failure: row.get(2)? }));
        Ok(rows(&self.db, "reading the model's input", sql, [chat.0], read)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attachment::{Document, DocumentKind, fixtures::haystack},
        store::NewMessage,
    };

    #[test]
    fn closest_passages_are_found_once_all_have_vectors_of_the_model() {
        let (mut store, chat) = Store::with_chat();
        let text = haystack("The walrus sings.");
        let document = Document::read("a.txt".to_owned(), DocumentKind::Text, text.as_bytes()).unwrap();
        let file = store.attach(chat, &document).unwrap();
        let missing = store.passages_without_vector(&[file], "m").unwrap();
        assert_eq!(missing.iter().map(|(_, text)| text.as_str()).collect::<String>(), text);
        let vectors: Vec<(PassageId, Vec<f32>)> =
            missing.iter().enumerate().map(|(at, (id, _))| (*id, vec![at as f32, 1.0])).collect();
        store.set_passage_vectors("m", &vectors[1..]).unwrap();
        let find = |store: &Store, model: &str, question: &[f32]| {
            let found = store.find_passages_by_meaning(&[file], model, question, 2).unwrap();
            found.map(|found| found.into_iter().map(|it| it.id).collect::<Vec<_>>())
        };
        assert_eq!(find(&store, "m", &[1.0, 0.0]), None, "one has no vector");
        assert_eq!(store.passages_without_vector(&[file], "m").unwrap(), missing[..1]);
        store.set_passage_vectors("m", &vectors[..1]).unwrap();
        store.set_passage_vectors("m", &[(PassageId(-1), vec![1.0])]).unwrap();
        let last = missing.len() - 1;
        assert_eq!(find(&store, "m", &[1.0, 0.0]), Some(vec![missing[last].0, missing[last - 1].0]));
        assert_eq!(find(&store, "m", &[-1.0, 0.0]), Some(vec![missing[0].0, missing[1].0]));
        assert_eq!((find(&store, "other", &[1.0, 0.0]), find(&store, "m", &[1.0])), (None, None), "other vectors");
        let stored = |store: &Store| -> i64 {
            store.db.query_row("SELECT count(*) FROM passage_vector", [], |row| row.get(0)).unwrap()
        };
        store.set_passage_vectors("other", &vectors).unwrap();
        assert_eq!(stored(&store), vectors.len() as i64, "the vectors of one model are kept");
        assert_eq!((find(&store, "m", &[1.0, 0.0]), find(&store, "other", &[1.0, 0.0]).is_some()), (None, true));
        store.detach(file).unwrap();
        assert_eq!(stored(&store), 0, "they go with the file");
    }

    #[test]
    fn rankings_are_recorded_and_replaced() {
        let (mut store, chat) = Store::with_chat();
        let message = store.add_message(chat, None, &NewMessage::user("x")).unwrap();
        assert!(store.rankings(chat).unwrap().is_empty());
        let by_words = PassageRanking { failure: Some("the model is gone".to_owned()), ..PassageRanking::default() };
        let by_meaning = PassageRanking { model: Some("bge".to_owned()), ..PassageRanking::default() };
        for (ranking, words) in [
            (by_words, "ranked by words, because the model is gone"),
            (by_meaning, "ranked by meaning with bge"),
            (PassageRanking::default(), "ranked by words"),
        ] {
            store.set_ranking(message, &ranking).unwrap();
            assert_eq!((ranking.words(), &store.rankings(chat).unwrap()[&message]), (words.to_owned(), &ranking));
        }
    }
}
