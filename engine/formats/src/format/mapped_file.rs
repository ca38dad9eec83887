//! [`MappedFile`]: a mapped file, and whether all of it still exists.

use std::{
    fs::File,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

#[cfg(target_os = "linux")]
use super::UncachedFile;
use super::{Pager, mmap::hints};
use thermocline_base::error::{Error, Result};

/// A mapped file. If another program truncates it, or its disk goes away, the map reads as zeros
/// from then on. [`MappedFile::check`] then returns an error.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    /// Length in bytes when the file was mapped.
    len: u64,
    lost: AtomicBool,
    pager: OnceLock<Arc<Pager>>,
}

impl MappedFile {
    /// Describes `file`, opened at `path`, whose first `len` bytes are mapped.
    #[cfg(unix)]
    pub(super) fn new(path: PathBuf, file: File, len: u64) -> Self {
        MappedFile { path, file, len, lost: AtomicBool::new(false), pager: OnceLock::new() }
    }

    /// The path at which the file was opened.
    #[cfg(unix)]
    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Records that the map contains zeros instead of the file. Signal handlers may call it.
    /// Returns false if that was recorded before.
    pub(super) fn mark_lost(&self) -> bool {
        !self.lost.swap(true, Ordering::AcqRel)
    }

    /// Decides which pages are in memory. `None` if all of them may be.
    pub(super) fn pager(&self) -> Option<&Pager> {
        self.pager.get().map(Arc::as_ref)
    }

    /// Sets the pager, once.
    pub(super) fn set_pager(&self, pager: &Arc<Pager>) {
        self.pager.get_or_init(|| Arc::clone(pager));
    }

    /// Frees the memory of `pages`, whole pages of the map at `offset`. The next access reads them
    /// again.
    pub(super) fn forget(&self, pages: &[u8], offset: u64) {
        hints::forget(pages, &self.file, offset);
    }

    /// Drops the pages of the file from the system's cache, except those that a program has mapped.
    #[cfg(target_os = "linux")]
    pub(super) fn forget_cached(&self) {
        hints::drop_cached(&self.file, 0, usize::try_from(self.len).unwrap_or(usize::MAX));
    }

    /// The file, for reads past the system's cache.
    ///
    /// # Errors
    /// Errors of the system, for example if too many files are open.
    #[cfg(target_os = "linux")]
    pub(super) fn uncached(&self) -> std::io::Result<UncachedFile> {
        Ok(UncachedFile::new(&self.path, self.file.try_clone()?, self.len))
    }

    /// Checks that all bytes read from the map so far came from the file.
    ///
    /// A fault in the map marks the file as lost. The length is compared too, because a page that
    /// is truncated in its middle reads as zeros without a fault.
    ///
    /// # Errors
    /// [`Error::FileLost`].
    pub fn check(&self) -> Result<()> {
        let is_lost = self.lost.load(Ordering::Acquire) || self.file.metadata().is_ok_and(|now| now.len() < self.len);
        if is_lost {
            // If the file grows again, its bytes differ from before.
            self.mark_lost();
            return Err(Error::FileLost { path: self.path.clone() });
        }
        Ok(())
    }
}
