//! Presets: named system prompts and sampling settings.

use rusqlite::{Row, params};

use super::{
    Store,
    error::{OperationContext, StoreError},
    one, rows,
};

/// Row id of a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PresetId(pub(super) i64);

/// Named settings of a chat.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// Unique name set by the user.
    pub name: String,
    /// Key of the model that it is for; `None`: any model.
    pub model: Option<String>,
    /// System prompt.
    pub system_prompt: String,
    /// Sampling settings as JSON; `None`: the model's own.
    pub sampling: Option<String>,
}

impl Preset {
    fn read(row: &Row<'_>) -> rusqlite::Result<(PresetId, Preset)> {
        let preset =
            Preset { name: row.get(1)?, model: row.get(2)?, system_prompt: row.get(3)?, sampling: row.get(4)? };
        Ok((PresetId(row.get(0)?), preset))
    }
}

impl Store {
    /// Presets for any model and, if `model` is given, presets for that model, sorted by name.
    pub fn presets(&self, model: Option<&str>) -> Result<Vec<(PresetId, Preset)>, StoreError> {
        let sql = "SELECT id, name, model, system_prompt, sampling FROM preset WHERE model IS NULL OR model = ?1
            ORDER BY name COLLATE NOCASE";
        rows(&self.db, "reading presets", sql, [model], Preset::read)
    }

    /// Adds a preset. If the name exists already, the new preset is called `name 2`, and so on.
    pub fn add_preset(&mut self, preset: &Preset) -> Result<PresetId, StoreError> {
        const OPERATION: &str = "saving a preset";
        self.transaction(OPERATION, |db| {
            let taken = |name: &str| {
                let sql = "SELECT EXISTS (SELECT 1 FROM preset WHERE name = ?1)";
                db.query_row(sql, [name], |row| row.get::<_, bool>(0)).during(OPERATION)
            };
            let mut name = preset.name.clone();
            for n in 2.. {
                if !taken(&name)? {
                    break;
                }
                name = format!("{} {n}", preset.name);
            }
            let sql = "INSERT INTO preset (name, model, system_prompt, sampling) VALUES (?1, ?2, ?3, ?4)";
            db.execute(sql, params![name, preset.model, preset.system_prompt, preset.sampling]).during(OPERATION)?;
            Ok(PresetId(db.last_insert_rowid()))
        })
    }

    /// Replaces a preset.
    pub fn set_preset(&mut self, id: PresetId, preset: &Preset) -> Result<(), StoreError> {
        let sql = "UPDATE preset SET name = ?2, model = ?3, system_prompt = ?4, sampling = ?5 WHERE id = ?1";
        let Preset { name, model, system_prompt, sampling } = preset;
        let changed = self.db.execute(sql, params![id.0, name, model, system_prompt, sampling]);
        one(changed.during("changing a preset")?, "preset", id.0)
    }

    /// Removes a preset.
    pub fn remove_preset(&mut self, id: PresetId) -> Result<(), StoreError> {
        one(self.db.execute("DELETE FROM preset WHERE id = ?1", [id.0]).during("removing a preset")?, "preset", id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_unique_names_and_are_listed_by_model() {
        let mut store = Store::in_memory().unwrap();
        let any = Preset {
            name: "Pirate".to_owned(),
            model: None,
            system_prompt: "Speak like a pirate.".to_owned(),
            sampling: Some("{}".to_owned()),
        };
        let first = store.add_preset(&any).unwrap();
        let second = store.add_preset(&Preset { model: Some("m".to_owned()), ..any.clone() }).unwrap();
        let names = |store: &Store, model| {
            store.presets(model).unwrap().into_iter().map(|(_, preset)| preset.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&store, Some("m")), ["Pirate", "Pirate 2"]);
        assert_eq!(names(&store, Some("other")), ["Pirate"]);
        let changed = Preset { name: "Captain".to_owned(), ..any };
        store.set_preset(first, &changed).unwrap();
        store.remove_preset(second).unwrap();
        assert_eq!(store.presets(None).unwrap(), [(first, changed.clone())]);
        assert!(matches!(store.set_preset(second, &changed), Err(StoreError::Missing { what: "preset", .. })));
    }
}
