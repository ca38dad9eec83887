//! Whole files as [`Bytes`]: mapped, or read into RAM.
//!
//! A map costs nothing to open and its pages are shared with the page cache, so it is the default. Its price: when
//! another program truncates the file while it is mapped, touching a page past the new end raises SIGBUS.
//! [`survive_lost_files`] has the map read as zeros then, and [`MappedFile::check`] tells its readers that the file
//! is lost. [`ReadMode::Read`] is the alternative for files on unreliable storage: the bytes are copied once into
//! anonymous memory and the file is not looked at again. Windows does not let a mapped file be truncated or deleted;
//! there a disk that goes away still ends the process.

#![allow(unsafe_code)]

#[cfg(unix)]
mod lost;

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

#[cfg(unix)]
pub use lost::survive_lost_files;
use memmap2::{Mmap, MmapMut};

use super::Bytes;
#[cfg(unix)]
use super::MappedFile;
use thermocline_base::error::{Error, FileAction, Location, Result, ScarceMemory};

/// Way of a file's bytes into the address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReadMode {
    /// Map the file; pages are read when they are first touched. A file that is truncated while it is open is lost:
    /// [`Error::FileLost`].
    #[default]
    Map,
    /// Read the file into RAM. Slower to open and not shared between processes, but what happens to the file
    /// afterwards does not matter.
    Read,
}

/// Does nothing: a mapped file cannot be truncated on this system.
#[cfg(not(unix))]
pub fn survive_lost_files() {}

/// All bytes of the regular file at `path`, page-aligned. An empty file, a folder, a pipe or a device is an error.
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

/// The outcome of `parse` on the bytes of the file at `path`.
///
/// # Errors
/// Those of [`load`] and `parse`; [`Error::FileLost`] if the file was lost meanwhile, whatever `parse` has found.
pub(super) fn read_with<T>(path: &Path, mode: ReadMode, parse: impl FnOnce(&Bytes) -> Result<T>) -> Result<T> {
    let bytes = load(path, mode)?;
    let parsed = parse(&bytes);
    bytes.file().map_or(Ok(()), |file| file.check())?;
    parsed
}

/// The first bytes of such a file, at most `most`.
pub(crate) fn first_bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(|source| Error::io(FileAction::Read, path, source))?;
    Ok(bytes)
}

fn open(path: &Path) -> Result<(File, u64)> {
    // Looked at before it is opened: opening a pipe would wait for a writer that may never come.
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
    // SAFETY: the map is private to this module and only ever lent out as `&[u8]` through `Bytes`, so nothing in this
    // process writes to it. The remaining hazard is another process changing the file: a change of its contents only
    // changes the numbers a model computes with (no code relies on bytes staying equal for memory safety: everything
    // parsed from the map is copied into owned values, and its length is fixed when it is made), and a truncation
    // raises SIGBUS on access, which ends the process or gives zeros rather than memory that is not ours.
    let map = unsafe { Mmap::map(&file) }.map_err(|source| Error::io(FileAction::Map, path, source))?;
    // Rows are read in any order: whatever is missing then comes as a large page, which costs the address cache one entry, not in
    // pieces as small as the reads. Only a hint.
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
    let mut memory = anonymous(len, "reading the file into RAM")?;
    file.read_exact(&mut memory).map_err(|source| Error::io(FileAction::Read, path, source))?;
    let memory = memory.make_read_only().map_err(|source| Error::io(FileAction::Read, path, source))?;
    Ok(Bytes::new(memory))
}

/// `len` bytes, at least 1, for weights. Rather than a `Vec`: page-aligned like a map, zeroed lazily, and its failure is an error
/// value that says `what` it was for.
pub fn anonymous(len: usize, what: &'static str) -> Result<MmapMut> {
    let memory = MmapMut::map_anon(len).map_err(|_| Error::memory(ScarceMemory::Ram, what, len as u64, 0))?;
    // Rows are read in any order: with large pages fewer of them miss the address cache. Only a hint.
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
