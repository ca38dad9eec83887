//! [`MappedFile`]: a file that is mapped, and whether all of it is still there.

use std::{
    fs::File,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use thermocline_base::error::{Error, Result};

/// A mapped file. When another program truncates it, or its disk goes away, the map reads as zeros from then on, and
/// [`MappedFile::check`] is an error.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    /// Length when it was mapped, in bytes.
    len: u64,
    lost: AtomicBool,
}

impl MappedFile {
    /// `file` at `path`, whose first `len` bytes are mapped.
    #[cfg(unix)]
    pub(super) fn new(path: PathBuf, file: File, len: u64) -> Self {
        MappedFile { path, file, len, lost: AtomicBool::new(false) }
    }

    /// The path it was opened at.
    #[cfg(unix)]
    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Says that the map has zeros instead of the file. Signal handlers may call it.
    pub(super) fn mark_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Checks that no byte read from the map so far was a zero in place of the file's.
    ///
    /// A fault of the map marks it as lost. The length is compared too, because a page that is
    /// truncated in its middle reads as zeros without a fault.
    ///
    /// # Errors
    /// [`Error::FileLost`].
    pub fn check(&self) -> Result<()> {
        let is_lost = self.lost.load(Ordering::Acquire) || self.file.metadata().is_ok_and(|now| now.len() < self.len);
        if is_lost {
            // A file that grows again has other bytes than before.
            self.mark_lost();
            return Err(Error::FileLost { path: self.path.clone() });
        }
        Ok(())
    }
}
