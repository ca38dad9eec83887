//! The contents of the list of chats, as the store has them.

use thermocline_chats::store::{Chat, Folder, Store, StoreError};

/// All that the list shows.
#[derive(Debug, Default)]
pub struct ChatList {
    /// Those that are not deleted.
    pub chats: Vec<Chat>,
    /// The folders that they are in.
    pub folders: Vec<Folder>,
    /// Deleted ones that can be brought back.
    pub gone: Vec<Chat>,
    /// When today and yesterday began, in milliseconds since 1970.
    pub days: (i64, i64),
}

impl ChatList {
    /// Reads it.
    ///
    /// # Errors
    /// The store's error.
    pub fn read(store: &Store) -> Result<Self, StoreError> {
        let (chats, folders) = (store.chats()?, store.folders()?);
        Ok(ChatList { chats, folders, gone: store.deleted_chats()?, days: store.days()? })
    }
}
