//! Folders of chats.

use rusqlite::{Row, params};

use super::{
    Store,
    error::{OperationContext, StoreError},
    one, rows,
};

/// Row id of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FolderId(pub(super) i64);

/// A folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Row id.
    pub id: FolderId,
    /// Name set by the user.
    pub name: String,
}

impl Store {
    /// All folders, by position.
    pub fn folders(&self) -> Result<Vec<Folder>, StoreError> {
        let read = |row: &Row<'_>| Ok(Folder { id: FolderId(row.get(0)?), name: row.get(1)? });
        rows(&self.db, "reading folders", "SELECT id, name FROM folder ORDER BY position, id", [], read)
    }

    /// Adds a folder after the others.
    pub fn add_folder(&mut self, name: &str) -> Result<FolderId, StoreError> {
        const OPERATION: &str = "creating a folder";
        let sql = "INSERT INTO folder (name, position) SELECT ?1, coalesce(max(position), 0) + 1 FROM folder";
        self.db.execute(sql, [name]).during(OPERATION)?;
        Ok(FolderId(self.db.last_insert_rowid()))
    }

    /// Renames a folder.
    pub fn rename_folder(&mut self, id: FolderId, name: &str) -> Result<(), StoreError> {
        let sql = "UPDATE folder SET name = ?2 WHERE id = ?1";
        one(self.db.execute(sql, params![id.0, name]).during("renaming a folder")?, "folder", id.0)
    }

    /// Removes a folder. Its chats are kept, outside any folder.
    pub fn remove_folder(&mut self, id: FolderId) -> Result<(), StoreError> {
        let sql = "DELETE FROM folder WHERE id = ?1";
        one(self.db.execute(sql, [id.0]).during("removing a folder")?, "folder", id.0)
    }
}
