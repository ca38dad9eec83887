//! Folders of chats.

use rusqlite::params;

use super::{
    Store,
    error::{Doing, StoreError},
    one,
};

/// Number of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FolderId(pub(super) i64);

/// A folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Its number.
    pub id: FolderId,
    /// What the user calls it.
    pub name: String,
}

impl Store {
    /// All folders, in their order.
    pub fn folders(&self) -> Result<Vec<Folder>, StoreError> {
        const DOING: &str = "reading folders";
        let mut query = self.db.prepare_cached("SELECT id, name FROM folder ORDER BY position, id").doing(DOING)?;
        let rows =
            query.query_map([], |row| Ok(Folder { id: FolderId(row.get(0)?), name: row.get(1)? })).doing(DOING)?;
        rows.collect::<Result<_, _>>().doing(DOING)
    }

    /// A new folder behind the others.
    pub fn add_folder(&mut self, name: &str) -> Result<FolderId, StoreError> {
        const DOING: &str = "making a folder";
        let sql = "INSERT INTO folder (name, position) SELECT ?1, coalesce(max(position), 0) + 1 FROM folder";
        self.db.execute(sql, [name]).doing(DOING)?;
        Ok(FolderId(self.db.last_insert_rowid()))
    }

    /// Gives a folder another name.
    pub fn rename_folder(&mut self, id: FolderId, name: &str) -> Result<(), StoreError> {
        let sql = "UPDATE folder SET name = ?2 WHERE id = ?1";
        one(self.db.execute(sql, params![id.0, name]).doing("renaming a folder")?, "folder", id.0)
    }

    /// Removes a folder; its chats are then in none.
    pub fn remove_folder(&mut self, id: FolderId) -> Result<(), StoreError> {
        let sql = "DELETE FROM folder WHERE id = ?1";
        one(self.db.execute(sql, [id.0]).doing("removing a folder")?, "folder", id.0)
    }
}
