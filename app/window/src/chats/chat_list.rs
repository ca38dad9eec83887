//! The contents of the chat list, read from the store.

use thermocline_chats::store::{Chat, Folder, Store, StoreError};

/// Everything that the list shows.
#[derive(Debug, Default)]
pub struct ChatList {
    /// The chats that are not deleted.
    pub chats: Vec<Chat>,
    /// The folders of the chats.
    pub folders: Vec<Folder>,
    /// The deleted chats that can be restored.
    pub gone: Vec<Chat>,
    /// Start of today and of yesterday, in milliseconds since 1970.
    pub days: (i64, i64),
}

impl ChatList {
    /// Reads the list from the store.
    ///
    /// # Errors
    /// The store's error.
    pub fn read(store: &Store) -> Result<Self, StoreError> {
        let (chats, folders) = (store.chats()?, store.folders()?);
        Ok(ChatList { chats, folders, gone: store.deleted_chats()?, days: store.days()? })
    }
}
