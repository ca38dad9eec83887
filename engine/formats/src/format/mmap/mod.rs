//! Whole files as [`Bytes`]: mapped, or read into RAM.
//!
//! A map costs nothing to open and shares its pages with the page cache, so it is the default. Its
//! drawback: if another program truncates the mapped file, accessing a page past the new end raises
//! SIGBUS. With [`survive_lost_files`] the map then reads as zeros, and [`MappedFile::check`]
//! reports the file as lost. [`ReadMode::Read`] is the alternative for files on unreliable storage.
//! It copies the bytes once into anonymous memory and never reads the file again. Windows does not
//! allow a mapped file to be truncated or deleted. There a disk that goes away still ends the
//! process.

#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
pub(super) mod filled;
pub(super) mod hints;
#[cfg(unix)]
mod lost;
mod uncached;

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

#[cfg(unix)]
pub use lost::survive_lost_files;
use memmap2::{Mmap, MmapMut};
pub use uncached::UncachedFile;

use super::Bytes;
#[cfg(unix)]
use super::MappedFile;
use thermocline_base::error::{Error, FileAction, Location, Result, ScarceMemory};

/// How a file's bytes get into the address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReadMode {
    /// Map the file. Pages are read at their first access. If the file is truncated while it is
    /// open, it is lost: [`Error::FileLost`].
    #[default]
    Map,
    /// Read the file into RAM. This is slower to open and not shared between processes, but later
    /// changes of the file have no effect.
    Read,
}

/// Does nothing: a mapped file cannot be truncated on this system.
#[cfg(not(unix))]
pub fn survive_lost_files() {}

/// Loads all bytes of the regular file at `path`, page-aligned. An empty file, a folder, a pipe or
/// a device is an error.
pub(crate) fn load(path: &Path, mode: ReadMode) -> Result<Bytes> {
    let (file, len) = open(path)?;
    let Ok(addressable) = usize::try_from(len) else {
        return Err(Error::memory(ScarceMemory::Ram, "address space for the file", len, usize::MAX as u64));
    };
    match mode {
        ReadMode::Map => map(path, file, len),
        ReadMode::Read => read(path, file, addressable),
    }
}

/// Runs `parse` on the bytes of the file at `path` and returns its result.
///
/// # Errors
/// The errors of [`load`] and `parse`. [`Error::FileLost`] if the file was lost meanwhile, whatever
/// `parse` returned.
pub(super) fn read_with<T>(path: &Path, mode: ReadMode, parse: impl FnOnce(&Bytes) -> Result<T>) -> Result<T> {
    let bytes = load(path, mode)?;
    let parsed = parse(&bytes);
    bytes.file().map_or(Ok(()), |file| file.check())?;
    parsed
}

/// Reads at most `most` bytes from the start of a regular file.
pub(crate) fn first_bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(|source| Error::io(FileAction::Read, path, source))?;
    Ok(bytes)
}

fn open(path: &Path) -> Result<(File, u64)> {
    // Checked before opening, because opening a pipe would wait for a writer that may never come.
    let found = fs::metadata(path).map_err(|source| Error::io(FileAction::Open, path, source))?;
    if !found.is_file() {
        let got = if found.is_dir() { "a directory" } else { "a pipe, socket or device" };
        return Err(Error::malformed(path, Location::File, "a regular file", got));
    }
    let file = File::open(path).map_err(|source| Error::io(FileAction::Open, path, source))?;
    let len = file.metadata().map_err(|source| Error::io(FileAction::Open, path, source))?.len();
    if len == 0 {
        return Err(Error::malformed(path, Location::File, "a model file", "an empty file"));
    }
    Ok((file, len))
}

fn map(path: &Path, file: File, len: u64) -> Result<Bytes> {
    // SAFETY: the map is private to this module and only lent out as `&[u8]` through `Bytes`, so
    // nothing in this process writes to it. The remaining hazard is another process that changes
    // the file. A change of its contents only changes the numbers a model computes with. No code
    // relies on bytes staying equal for memory safety: everything parsed from the map is copied
    // into owned values, and its length is fixed when it is made. A truncation raises SIGBUS on
    // access, which ends the process or gives zeros, never memory that is not ours.
    let map = unsafe { Mmap::map(&file) }.map_err(|source| Error::io(FileAction::Map, path, source))?;
    // Rows are read in any order. With large pages, missing data are read in large pieces, and each
    // takes only one entry of the address cache. Only a hint.
    #[cfg(target_os = "linux")]
    map.advise(memmap2::Advice::HugePage).ok();
    #[cfg(unix)]
    {
        let file = std::sync::Arc::new(MappedFile::new(path.to_owned(), file, len));
        Ok(Bytes::mapped(lost::WatchedMap::new(map, std::sync::Arc::clone(&file)), file))
    }
    #[cfg(not(unix))]
    {
        let _ = (file, len);
        Ok(Bytes::new(map))
    }
}

fn read(path: &Path, mut file: File, len: usize) -> Result<Bytes> {
    let mut memory = anonymous(len, "RAM for the file")?;
    file.read_exact(&mut memory).map_err(|source| Error::io(FileAction::Read, path, source))?;
    let memory = memory.make_read_only().map_err(|source| Error::io(FileAction::Read, path, source))?;
    Ok(Bytes::new(memory))
}

/// Allocates `len` bytes, at least 1, for weights. Unlike a `Vec` they are page-aligned like a map
/// and zeroed lazily. A failure is an error value, in which `what` names the purpose.
pub fn anonymous(len: usize, what: &'static str) -> Result<MmapMut> {
    let memory = MmapMut::map_anon(len).map_err(|_| Error::memory(ScarceMemory::Ram, what, len as u64, 0))?;
    // Rows are read in any order, and with large pages fewer reads miss the address cache. Only a
    // hint.
    #[cfg(target_os = "linux")]
    memory.advise(memmap2::Advice::HugePage).ok();
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_base::files;

    #[test]
    fn map_and_read_give_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"thermocline").unwrap();
        for mode in [ReadMode::Map, ReadMode::Read] {
            let bytes = load(&path, mode).unwrap();
            assert_eq!(&bytes[..], b"thermocline");
            assert_eq!(bytes.as_ptr().align_offset(4096), 0);
        }
    }

    #[test]
    fn mapped_file_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let put = |bytes: &[u8]| files::write(&path, files::Form::Random, bytes).unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        put(b"first");
        let first = load(&path, ReadMode::Map).unwrap();
        put(b"second");
        let second = load(&path, ReadMode::Map).unwrap();
        put(b"third");
        assert_eq!((&first[..], &second[..]), (&b"first"[..], &b"second"[..]));
        assert_eq!(fs::read(&path).unwrap(), b"third");
        drop((first, second));
        put(b"fourth");
        assert_eq!((fs::read(&path).unwrap(), names()), (b"fourth".to_vec(), 1));
    }

    #[test]
    fn file_read_to_memory_survives_its_truncation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 100_000]).unwrap();
        let bytes = load(&path, ReadMode::Read).unwrap();
        File::create(&path).unwrap().set_len(1).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn open_refuses_empty_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        fs::write(&empty, b"").unwrap();
        for mode in [ReadMode::Map, ReadMode::Read] {
            let message = |path: &Path| load(path, mode).unwrap_err().to_string();
            assert!(message(&empty).ends_with("got an empty file"), "{}", message(&empty));
            assert!(message(folder.path()).ends_with("got a directory"), "{}", message(folder.path()));
            assert!(message(&folder.path().join("absent")).starts_with("cannot open"));
            #[cfg(unix)]
            assert!(message(Path::new("/dev/zero")).ends_with("got a pipe, socket or device"));
        }
    }
}
