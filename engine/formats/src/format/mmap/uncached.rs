//! [`UncachedFile`]: reads of a file that do not come from the system's cache.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use super::open;
use thermocline_base::error::{Error, FileAction, Result};

/// A file that is read from its disk, to measure the disk.
#[derive(Debug)]
pub struct UncachedFile {
    path: PathBuf,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "other systems do not drop pages"))]
    file: File,
    len: u64,
}

impl UncachedFile {
    /// Opens the regular file at `path`. `None` on systems that do not drop pages on request.
    ///
    /// # Errors
    /// Errors of opening the file, and [`Error::Malformed`] if it is empty or no regular file.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let (file, len) = open(path)?;
        #[cfg(target_os = "linux")]
        super::hints::read_exactly(&file);
        Ok(cfg!(target_os = "linux").then(|| UncachedFile { path: path.to_owned(), file, len }))
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Fills `part` with the bytes from `offset` on, read from the disk. Drops them from the
    /// system's cache before and after, unless a program has mapped them.
    ///
    /// # Errors
    /// [`Error::Io`] if the read fails or ends early.
    pub fn read(&self, part: &mut [u8], offset: u64) -> Result<()> {
        #[cfg(target_os = "linux")]
        let done = {
            use std::os::unix::fs::FileExt;
            super::hints::drop_cached(&self.file, offset, part.len());
            let done = self.file.read_exact_at(part, offset);
            super::hints::drop_cached(&self.file, offset, part.len());
            done
        };
        #[cfg(not(target_os = "linux"))]
        let done = {
            let _ = (part, offset);
            Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
        };
        done.map_err(|source| Error::io(FileAction::Read, &self.path, source))
    }
}
