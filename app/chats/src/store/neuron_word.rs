//! Words at which neurons fired, across chats. They are recorded only while the user allows it, in
//! a table of bounded size that the user can empty. They come from answers, and stay when their
//! chats are deleted.

use rusqlite::params;

use super::{Store, StoreError, error::OperationContext, rows};

const OPERATION: &str = "saving the words of neurons";

/// Largest number of words kept per neuron.
pub const MOST_WORDS: i64 = 12;

/// Largest number of rows of all models together, about 5 MB.
pub const MOST_ROWS: i64 = 50_000;

/// A word at which a neuron fired.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptWord {
    /// The neuron's layer.
    pub layer: usize,
    /// The neuron.
    pub neuron: usize,
    /// The word in lower case.
    pub word: String,
    /// Number of firings at the word.
    pub times: u32,
}

impl Store {
    /// Adds `words` to the words of the model with this fingerprint. Above the limits, the rarest
    /// words of a neuron and the rows not updated for the longest time are deleted.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn add_kept_words(&mut self, model: &str, words: &[KeptWord]) -> Result<(), StoreError> {
        self.add_within(model, words, MOST_ROWS)
    }

    fn add_within(&mut self, model: &str, words: &[KeptWord], most_rows: i64) -> Result<(), StoreError> {
        self.transaction(OPERATION, |db| {
            let sql =
                "INSERT INTO neuron_word (model, layer, neuron, word, times, touched) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                ON CONFLICT DO UPDATE SET times = times + excluded.times, touched = excluded.touched";
            let mut add = db.prepare_cached(sql).during(OPERATION)?;
            let sql = "DELETE FROM neuron_word WHERE model = ?1 AND layer = ?2 AND neuron = ?3 AND word NOT IN
                (SELECT word FROM neuron_word WHERE model = ?1 AND layer = ?2 AND neuron = ?3
                ORDER BY times DESC, touched DESC, word LIMIT ?4)";
            let mut trim = db.prepare_cached(sql).during(OPERATION)?;
            let now = super::now();
            for KeptWord { layer, neuron, word, times } in words {
                let place = (*layer as i64, *neuron as i64);
                add.execute(params![model, place.0, place.1, word, times, now]).during(OPERATION)?;
                trim.execute(params![model, place.0, place.1, MOST_WORDS]).during(OPERATION)?;
            }
            let sql = "DELETE FROM neuron_word WHERE (model, layer, neuron, word) IN
                (SELECT model, layer, neuron, word FROM neuron_word ORDER BY touched, times
                LIMIT max(0, (SELECT count(*) FROM neuron_word) - ?1))";
            db.execute(sql, [most_rows]).during(OPERATION)?;
            Ok(())
        })
    }

    /// The words kept of a neuron, the most frequent first.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn kept_words(&self, model: &str, layer: usize, neuron: usize) -> Result<Vec<KeptWord>, StoreError> {
        let sql = "SELECT layer, neuron, word, times FROM neuron_word WHERE model = ?1 AND layer = ?2 AND neuron = ?3
            ORDER BY times DESC, touched DESC, word";
        self.read_kept_words(sql, params![model, layer as i64, neuron as i64])
    }

    /// At most `count` neurons recorded for `word`. The neurons that fired at it most often come
    /// first.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn neurons_of_word(&self, model: &str, word: &str, count: usize) -> Result<Vec<KeptWord>, StoreError> {
        let sql = "SELECT layer, neuron, word, times FROM neuron_word WHERE model = ?1 AND word = ?2
            ORDER BY times DESC, layer, neuron LIMIT ?3";
        self.read_kept_words(sql, params![model, word.to_lowercase(), count as i64])
    }

    fn read_kept_words(&self, sql: &str, params: impl rusqlite::Params) -> Result<Vec<KeptWord>, StoreError> {
        rows(&self.db, "reading the words of neurons", sql, params, |row| {
            let number = |at| row.get::<_, i64>(at).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
            Ok(KeptWord { layer: number(0)?, neuron: number(1)?, word: row.get(2)?, times: row.get(3)? })
        })
    }

    /// True if any word of any neuron is kept.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn has_kept_words(&self) -> Result<bool, StoreError> {
        let found = self.db.query_row("SELECT EXISTS (SELECT 1 FROM neuron_word)", [], |row| row.get(0));
        found.during("looking for words of neurons")
    }

    /// Deletes the words of all neurons and models. Their bytes in the file are overwritten.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn delete_kept_words(&mut self) -> Result<(), StoreError> {
        const OPERATION: &str = "deleting the words of neurons";
        let overwrite = |value| self.db.pragma_update(None, "secure_delete", value).during(OPERATION);
        overwrite("ON")?;
        let deleted = self.db.execute("DELETE FROM neuron_word", []).during(OPERATION);
        overwrite("OFF")?;
        // The journal contains the words, too. If another window is using it, they are removed with
        // its next change.
        let _ = self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        deleted.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(neuron: usize, word: &str, times: u32) -> KeptWord {
        KeptWord { layer: 1, neuron, word: word.to_owned(), times }
    }

    #[test]
    fn words_of_neurons_add_up_by_model_and_deleting_empties() {
        let mut store = Store::in_memory().unwrap();
        assert!(!store.has_kept_words().unwrap());
        store.add_kept_words("m", &[word(7, "dog", 2), word(7, "cat", 3), word(8, "dog", 1)]).unwrap();
        store.add_kept_words("m", &[word(7, "dog", 4)]).unwrap();
        store.add_kept_words("other", &[word(7, "rain", 1)]).unwrap();
        assert_eq!(store.kept_words("m", 1, 7).unwrap(), [word(7, "dog", 6), word(7, "cat", 3)]);
        assert_eq!(store.kept_words("m", 0, 7).unwrap(), []);
        assert_eq!(store.neurons_of_word("m", "Dog", 9).unwrap(), [word(7, "dog", 6), word(8, "dog", 1)]);
        assert_eq!(store.neurons_of_word("m", "dog", 1).unwrap(), [word(7, "dog", 6)]);
        assert!(store.has_kept_words().unwrap());
        store.delete_kept_words().unwrap();
        assert!(!store.has_kept_words().unwrap());
        assert_eq!(store.kept_words("m", 1, 7).unwrap(), []);
    }

    #[test]
    fn bounds_of_a_neuron_and_of_the_table_hold() {
        let mut store = Store::in_memory().unwrap();
        let many: Vec<KeptWord> = (1..40).map(|n| word(7, &format!("word{n}"), n)).collect();
        store.add_kept_words("m", &many).unwrap();
        let kept = store.kept_words("m", 1, 7).unwrap();
        assert_eq!((kept.len() as i64, kept[0].times, kept[11].times), (MOST_WORDS, 39, 28), "the most frequent");
        // Times are in milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(5));
        let wide: Vec<KeptWord> = (100..130).map(|neuron| word(neuron, "dog", 1)).collect();
        store.add_within("m", &wide, 20).unwrap();
        let rows: i64 = store.db.query_row("SELECT count(*) FROM neuron_word", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 20);
        assert_eq!(store.kept_words("m", 1, 7).unwrap(), [], "those touched longest ago go first");
    }
}
