//! Shared, immutable bytes: a range of a memory map or a buffer. The range keeps its owner alive.

use std::{
    fmt,
    ops::{Deref, Range},
    sync::Arc,
};

use super::MappedFile;

/// A range of bytes with a shared owner. Clones are cheap.
#[derive(Clone)]
pub struct Bytes {
    owner: BytesOwner,
    /// The file that the owner maps, if the file can be lost.
    file: Option<Arc<MappedFile>>,
    start: usize,
    len: usize,
}

/// Who holds the memory of [`Bytes`].
pub(super) type BytesOwner = Arc<dyn AsRef<[u8]> + Send + Sync>;

impl Bytes {
    /// All bytes of `owner`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let len = owner.as_ref().len();
        Bytes { owner: Arc::new(owner), file: None, start: 0, len }
    }

    /// All bytes of `owner`, which maps `file`.
    #[cfg(unix)]
    pub(super) fn mapped(owner: impl AsRef<[u8]> + Send + Sync + 'static, file: Arc<MappedFile>) -> Self {
        Bytes { file: Some(file), ..Bytes::new(owner) }
    }

    /// The mapped file that contains the bytes. `None` for bytes that cannot be lost.
    pub(crate) fn file(&self) -> Option<&Arc<MappedFile>> {
        self.file.as_ref()
    }

    /// Who holds the memory.
    pub(super) fn owner(&self) -> &BytesOwner {
        &self.owner
    }

    /// A sub-range with the same owner. `None` if it is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        Some(Bytes { start: self.start + range.start, len: range.end - range.start, ..self.clone() })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // The truncation of a mapped file does not change the map's length, so the range stays
        // valid.
        &(*self.owner).as_ref()[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} at {})", self.len, self.start)
    }
}
