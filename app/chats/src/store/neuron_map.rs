//! Neurons of the last tokens of a chat, deleted with the chat. The table is created on the first
//! write, outside the versions of the [schema](super::schema), because a chat is complete without
//! it.

use rusqlite::{OptionalExtension, params};

use super::{ChatId, Store, StoreError, error::OperationContext};

const OPERATION: &str = "saving the map of a chat";

/// Largest number of chats whose maps are kept. The maps written last are kept.
const MOST_MAPS: i64 = 64;

impl Store {
    /// Saves `map`, recorded by the model `key`, with a chat. It replaces an earlier map.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn set_neuron_map(&mut self, chat: ChatId, key: &str, map: &[u8]) -> Result<(), StoreError> {
        self.transaction(OPERATION, |db| {
            let sql = "CREATE TABLE IF NOT EXISTS neuron_map (
                    chat INTEGER PRIMARY KEY REFERENCES chat (id) ON DELETE CASCADE,
                    model TEXT NOT NULL, written INTEGER NOT NULL, tokens BLOB NOT NULL
                )";
            db.execute(sql, []).during(OPERATION)?;
            let sql = "INSERT OR REPLACE INTO neuron_map (chat, model, written, tokens)
                SELECT id, ?2, ?3, ?4 FROM chat WHERE id = ?1";
            db.execute(sql, params![chat.0, key, super::now(), map]).during(OPERATION)?;
            let sql = "DELETE FROM neuron_map WHERE chat NOT IN
                (SELECT chat FROM neuron_map ORDER BY written DESC, chat DESC LIMIT ?1)";
            db.execute(sql, [MOST_MAPS]).during(OPERATION)?;
            Ok(())
        })
    }

    /// The map saved with a chat for the model `key`, if there is one.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn neuron_map(&self, chat: ChatId, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'neuron_map'";
        if self.db.query_row(table, [], |_| Ok(())).optional().during(OPERATION)?.is_none() {
            return Ok(None);
        }
        let sql = "SELECT tokens FROM neuron_map WHERE chat = ?1 AND model = ?2";
        self.db.query_row(sql, params![chat.0, key], |row| row.get(0)).optional().during(OPERATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_belongs_to_its_chat_and_its_model() {
        let mut store = Store::in_memory().unwrap();
        let [one, other] = [0, 1].map(|_| store.add_chat(None, "").unwrap());
        assert_eq!(store.neuron_map(one, "m").unwrap(), None, "no table yet");
        store.set_neuron_map(one, "m", b"first").unwrap();
        store.set_neuron_map(one, "m", b"second").unwrap();
        assert_eq!(store.neuron_map(one, "m").unwrap().as_deref(), Some(&b"second"[..]));
        assert_eq!((store.neuron_map(one, "n").unwrap(), store.neuron_map(other, "m").unwrap()), (None, None));
        let sql = "DELETE FROM chat WHERE id = ?1";
        store.db.execute(sql, [one.0]).unwrap();
        assert_eq!(store.neuron_map(one, "m").unwrap(), None);
        store.set_neuron_map(one, "m", b"late").unwrap();
        assert_eq!(store.neuron_map(one, "m").unwrap(), None, "nothing is kept of a chat that is gone");
    }

    #[test]
    fn maps_of_the_latest_chats_are_kept() {
        let mut store = Store::in_memory().unwrap();
        let chats: Vec<ChatId> = (0..MOST_MAPS + 3).map(|_| store.add_chat(None, "").unwrap()).collect();
        for chat in &chats {
            store.set_neuron_map(*chat, "m", b"map").unwrap();
        }
        let kept = chats.iter().filter(|chat| store.neuron_map(**chat, "m").unwrap().is_some()).count();
        assert_eq!(kept as i64, MOST_MAPS);
        assert!(store.neuron_map(chats[chats.len() - 1], "m").unwrap().is_some());
    }
}
