//! [`UncachedFile`]: reads of a file that do not come from the system's cache.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use super::open;
use thermocline_base::error::{Error, FileAction, Result};

/// A file that is read from its disk.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "other systems do not read past their cache"))]
pub struct UncachedFile {
    path: PathBuf,
    file: File,
    /// The file, opened for reads past the cache. `None` if its file system has no such reads.
    direct: Option<File>,
    len: u64,
}

impl UncachedFile {
    /// Opens the regular file at `path`. `None` on systems that cannot read past their cache.
    ///
    /// # Errors
    /// Errors of opening the file, and [`Error::Malformed`] if it is empty or no regular file.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let (file, len) = open(path)?;
        #[cfg(target_os = "linux")]
        return Ok(Some(UncachedFile::new(path, file, len)));
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (file, len);
            Ok(None)
        }
    }

    /// Reads `file`, the open file of `len` bytes that was found at `path`.
    #[cfg(target_os = "linux")]
    pub(crate) fn new(path: &Path, file: File, len: u64) -> Self {
        use std::{
            fs::OpenOptions,
            os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
        };
        // Another file may be at the path now.
        let same = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(same).ok();
        super::hints::read_exactly(&file);
        UncachedFile { path: path.to_owned(), file, direct, len }
    }

    /// True if reads of whole pages go past the system's cache.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Fills `part` with the bytes from `offset` on, read from the disk. What is after the end of
    /// the file becomes zero. Whole pages in memory that begins at a page are fastest.
    ///
    /// # Errors
    /// [`Error::Io`] if the read fails or ends early.
    #[cfg(target_os = "linux")]
    pub fn read(&self, part: &mut [u8], offset: u64) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let in_file = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(part.len());
        // The system refuses this read if the offset or the address is no multiple of a disk block.
        let direct = self.direct.as_ref().and_then(|file| file.read_at(part, offset).ok());
        let done = direct.unwrap_or(0).min(in_file);
        part[in_file..].fill(0);
        let rest = &mut part[done..in_file];
        if rest.is_empty() {
            return Ok(());
        }
        let from = offset + done as u64;
        super::hints::drop_cached(&self.file, from, rest.len());
        let read = self.file.read_exact_at(rest, from);
        super::hints::drop_cached(&self.file, from, rest.len());
        read.map_err(|source| Error::io(FileAction::Read, &self.path, source))
    }

    /// # Errors
    /// Always: this system cannot read past its cache.
    #[cfg(not(target_os = "linux"))]
    pub fn read(&self, part: &mut [u8], offset: u64) -> Result<()> {
        let _ = (part, offset);
        let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
        Err(Error::io(FileAction::Read, &self.path, source))
    }
}
