//! Files that are written whole or not at all. A new file takes its name when all of it is written,
//! so that a full disk or a killed program leaves the old file. Only regular files are replaced. A
//! pipe, a terminal or a device is written to directly if its reader accepts a stream, and refused
//! otherwise.

use std::{
    fs::{self, File, Metadata},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use serde::Serialize;
use tempfile::{NamedTempFile, TempPath};

use crate::error::{Error, FileAction, Location, Result};

/// Bytes collected before each write.
const BUFFER: usize = 1 << 20;

/// Number of links to follow before they count as a circle, as on Linux.
const MOST_LINKS: usize = 40;

/// Bytes of a file's name in its temporary name. Short enough for any file system.
const NAME: usize = 100;

/// Most old files of one name. On Windows, programs may still map old files after a new file took
/// the name.
const MOST_OLD: usize = 8;

/// The access that a file's readers need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Bytes in order: tables, text, pictures. Any file that accepts bytes will do.
    Stream,
    /// Bytes at offsets, because the file is mapped or read again. Only a regular file will do.
    Random,
}

/// The temporary files of this process.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the temporary files of every [`NewFile`]. A process calls this before it ends without
/// dropping them.
pub fn remove_unfinished() {
    UNFINISHED.lock().drain(..).for_each(|path| drop(fs::remove_file(path)));
}

/// The names of a file that is being written.
#[derive(Debug)]
struct FileNames {
    temporary: TempPath,
    target: PathBuf,
    _entry: UnfinishedEntry,
}

/// The entry of a temporary file in [`UNFINISHED`].
#[derive(Debug)]
struct UnfinishedEntry(PathBuf);

impl UnfinishedEntry {
    fn new(path: &Path) -> Self {
        UNFINISHED.lock().push(path.to_path_buf());
        UnfinishedEntry(path.to_path_buf())
    }
}

impl Drop for UnfinishedEntry {
    fn drop(&mut self) {
        UNFINISHED.lock().retain(|path| *path != self.0);
    }
}

/// Kind of file at a path, after following links.
#[derive(Debug)]
enum FileTarget {
    /// A regular file and its metadata, or a free name.
    Regular { path: PathBuf, old: Option<Metadata> },
    /// Standard output or error, under one of its names.
    #[cfg(unix)]
    Standard(u32),
    /// A pipe, a terminal or a device, or another descriptor of this process, which may be a file
    /// (`append`).
    Special { append: bool },
}

/// A new file that is being written for a path.
///
/// The bytes of a regular file are written to a temporary file beside it. [`NewFile::finish`] syncs
/// the temporary file and gives it the name and the old file's mode bits. If anything fails, or
/// this is dropped, the temporary file is removed and the old file is untouched. If the path is a
/// link, the link stays and the file behind it is replaced.
#[derive(Debug)]
pub struct NewFile {
    /// The path as the caller names it.
    path: PathBuf,
    file: BufWriter<File>,
    /// `None` if the bytes are written in place.
    names: Option<FileNames>,
}

impl NewFile {
    /// Starts a file at `path`. If `path` is a pipe, waits for its reader.
    ///
    /// # Errors
    /// The errors of [`check`]. [`Error::Io`] if no file can be created in the folder.
    pub fn create(path: &Path, form: Form) -> Result<Self> {
        let mut names = None;
        let (action, opened) = match FileTarget::of(path, form)? {
            FileTarget::Regular { path: target, old } => {
                let parts = temporary(&target, old.as_ref()).map(NamedTempFile::into_parts);
                let file = parts.map(|(file, temporary)| {
                    let entry = UnfinishedEntry::new(&temporary);
                    names = Some(FileNames { temporary, target, _entry: entry });
                    file
                });
                (FileAction::Create, file)
            }
            #[cfg(unix)]
            FileTarget::Standard(number) => (FileAction::Write, standard(number)),
            FileTarget::Special { append } => {
                (FileAction::Write, File::options().write(true).append(append).open(path))
            }
        };
        let file = opened.map_err(|source| Error::io(action, path, source))?;
        Ok(NewFile { path: path.to_path_buf(), file: BufWriter::with_capacity(BUFFER, file), names })
    }

    /// Waits until the file is on the disk, then puts it in its place.
    ///
    /// # Errors
    /// [`Error::Io`]. [`Error::Malformed`] if another program has put something other than a
    /// regular file in the place.
    pub fn finish(self) -> Result<()> {
        self.end(true)
    }

    /// Puts the file in its place without waiting for the disk, for files that can be made again.
    /// After a power failure the file may be empty.
    ///
    /// # Errors
    /// The errors of [`NewFile::finish`].
    pub fn finish_unsynced(self) -> Result<()> {
        self.end(false)
    }

    fn end(self, sync: bool) -> Result<()> {
        let NewFile { path, mut file, names } = self;
        let failed = |source| Error::io(FileAction::Write, &path, source);
        file.flush().map_err(failed)?;
        let Some(FileNames { temporary, target, _entry }) = names else { return Ok(()) };
        if sync {
            file.get_ref().sync_all().map_err(failed)?;
        }
        drop(file);
        // Checks again, because hours may have passed since the file was started.
        FileTarget::of(&target, Form::Random)?;
        put(temporary, &target).map_err(|source| Error::io(FileAction::Rename, &path, source))?;
        // Syncing the folder writes the new name to the disk. Not every system can open a folder.
        if sync && let Ok(folder) = File::open(folder(&target)) {
            folder.sync_all().ok();
        }
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `bytes` to `path`, whole or not at all. See [`NewFile`].
///
/// # Errors
/// The errors of [`NewFile::create`] and [`NewFile::finish`].
pub fn write(path: &Path, form: Form, bytes: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path, form)?;
    file.write_all(bytes).map_err(|source| Error::io(FileAction::Write, path, source))?;
    file.finish()
}

/// Writes `bytes`, which can be made again, to `path`, whole or not at all, and creates its folder.
/// After a power failure the file may be empty.
///
/// # Errors
/// The errors of [`write()`].
pub fn keep(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |source| Error::io(FileAction::Write, path, source);
    fs::create_dir_all(folder(path)).map_err(failed)?;
    let mut file = NewFile::create(path, Form::Stream)?;
    file.write_all(bytes).map_err(failed)?;
    file.finish_unsynced()
}

/// Writes a value as JSON, as [`keep`] does.
///
/// # Errors
/// The errors of [`write()`].
pub fn keep_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(value);
    keep(path, &text.map_err(|error| Error::io(FileAction::Write, path, error.into()))?)
}

/// Checks that `path` can hold a file of this form, without opening it. For commands that compute
/// for a long time before they write.
///
/// # Errors
/// [`Error::Malformed`] for a folder, a socket or a disk. Also for a pipe, a terminal or a device
/// if the form is [`Form::Random`]. [`Error::Io`] if the system does not report the kind of file.
pub fn check(path: &Path, form: Form) -> Result<()> {
    FileTarget::of(path, form).map(drop)
}

impl FileTarget {
    fn of(path: &Path, form: Form) -> Result<Self> {
        let refused = |expected: &str, got: &str| Err(Error::malformed(path, Location::File, expected, got));
        let special = |got: &str, target| match form {
            Form::Stream => Ok(target),
            Form::Random => refused("a regular file, which can be read again", got),
        };
        let Some(end) = end_of_links(path) else {
            return refused("the name of a file to write", "symbolic links that form a circle");
        };
        #[cfg(unix)]
        match descriptor(&end) {
            Some(1) => return special("standard output", FileTarget::Standard(1)),
            Some(2) => return special("standard error", FileTarget::Standard(2)),
            Some(_) => return special("an open descriptor", FileTarget::Special { append: true }),
            None => {}
        }
        if cfg!(windows) && is_device_name(path) {
            return special("a device", FileTarget::Special { append: false });
        }
        let old = match fs::metadata(path) {
            Ok(old) => old,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(FileTarget::Regular { path: end, old: None });
            }
            Err(source) => return Err(Error::io(FileAction::Write, path, source)),
        };
        if old.is_file() {
            return Ok(FileTarget::Regular { path: end, old: Some(old) });
        }
        if old.is_dir() {
            return refused("the name of a file to write", "a directory");
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileTypeExt;
            match old.file_type() {
                ty if ty.is_fifo() => return special("a pipe", FileTarget::Special { append: false }),
                ty if ty.is_char_device() => {
                    return special("a character device", FileTarget::Special { append: false });
                }
                ty if ty.is_socket() => return refused("a file to write", "a socket"),
                ty if ty.is_block_device() => return refused("a file to write", "a block device"),
                _ => {}
            }
        }
        refused("a file to write", "neither a file nor a directory")
    }
}

/// The target of the chain of links at `path`. The target need not exist. `None` if the links form
/// a circle.
fn end_of_links(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        // The link that the system shows for a descriptor is not a path.
        #[cfg(unix)]
        if descriptor(&path).is_some() {
            return Some(path);
        }
        match fs::read_link(&path) {
            Ok(link) => path = folder(&path).join(link),
            Err(_) => return Some(path),
        }
    }
    None
}

/// The number of the open descriptor that `path` names: 7 for `/dev/fd/7` and `/proc/self/fd/7`.
/// (`/dev/stdout` is a link to one of these.)
#[cfg(unix)]
fn descriptor(path: &Path) -> Option<u32> {
    let in_proc = |parent: &Path| parent.starts_with("/proc") && parent.ends_with("fd");
    path.parent().filter(|parent| *parent == Path::new("/dev/fd") || in_proc(parent))?;
    path.file_name()?.to_str()?.parse().ok()
}

/// Standard output (1) or standard error, with its own offset. A file that it appends to keeps its
/// bytes.
#[cfg(unix)]
fn standard(number: u32) -> io::Result<File> {
    use std::os::fd::AsFd;
    if number == 2 {
        return io::stderr().as_fd().try_clone_to_owned().map(File::from);
    }
    io::stdout().flush()?;
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

/// True if Windows treats `path` as a device in any folder: `NUL`, `con`, `COM1`, `\\.\pipe\x`.
fn is_device_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_uppercase();
    path.to_string_lossy().starts_with(r"\\.\")
        || ["NUL", "CON", "CONOUT$", "PRN", "AUX"].contains(&&*name)
        || matches!(name.as_bytes(), [b'C', b'O', b'M', b'1'..=b'9'] | [b'L', b'P', b'T', b'1'..=b'9'])
}

/// Creates a file beside `target` that will take its name. It has the old file's mode bits and, if
/// the system allows it, the old file's owner.
fn temporary(target: &Path, old: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let prefix = format!(".{}.", short_name(target));
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".part");
    // As readable as any other new file. Temporary files are private by default.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.tempfile_in(folder(target))?;
    #[cfg(unix)]
    if let Some(old) = old {
        use std::os::unix::fs::{MetadataExt, fchown};
        if fchown(file.as_file(), Some(old.uid()), Some(old.gid())).is_err() {
            tracing::debug!(file = %target.display(), "the new file does not have the owner of the old file");
        }
        // After the change of the owner, which clears mode bits.
        file.as_file().set_permissions(old.permissions())?;
    }
    #[cfg(not(unix))]
    let _ = old;
    Ok(file)
}

/// Gives `file` the name `target`. Windows does not replace a mapped file, but allows it to be
/// renamed. There the old file gets another name and is removed at once. If it is still mapped, it
/// is removed before the next file takes the name.
fn put(file: TempPath, target: &Path) -> io::Result<()> {
    let aside = || (0..MOST_OLD).map(move |at| folder(target).join(format!(".{}.{at}.old", short_name(target))));
    if cfg!(windows) {
        aside().for_each(|name| drop(fs::remove_file(name)));
    }
    let Err(refused) = file.persist(target) else { return Ok(()) };
    let free = aside().find(|name| !name.exists());
    let Some(free) = free.filter(|_| cfg!(windows) && target.is_file()) else {
        return Err(refused.error);
    };
    fs::rename(target, &free)?;
    if let Err(again) = refused.path.persist(target) {
        fs::rename(&free, target).ok();
        return Err(again.error);
    }
    fs::remove_file(&free).ok();
    Ok(())
}

/// The beginning of the name of `target`, for the names of files beside it.
fn short_name(target: &Path) -> String {
    let mut name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.truncate(name.floor_char_boundary(NAME));
    name
}

/// The folder of a file. The path may be a bare file name.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests;
