//! Files written whole. A new file takes its name when all of it is written, so that a full disk or a killed program leaves what
//! was there before. Only regular files are replaced: a pipe, a terminal or a device is written to directly where its reader
//! can do with a stream, and refused otherwise.

use std::{
    fs::{self, File, Metadata},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;

use crate::error::{Error, FileAction, Location, Result};

/// Bytes gathered before a write.
const BUFFER: usize = 1 << 20;

/// Links followed before they count as a circle, as on Linux.
const MOST_LINKS: usize = 40;

/// Bytes of a file's name that its temporary file carries, so that both names are short enough for any file system.
const NAME: usize = 100;

/// Files of one name that may be mapped after others have taken it, on Windows.
const MOST_OLD: usize = 8;

/// Needs of a file's readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Bytes in order: tables, text, pictures. Whatever takes bytes will do.
    Stream,
    /// Bytes at offsets: the file is mapped or read again. Only a regular file will do.
    Random,
}

/// Kind of file at a path, links followed.
#[derive(Debug)]
enum Target {
    /// A regular file, with what the system knows of it, or a name that is free.
    Regular { path: PathBuf, old: Option<Metadata> },
    /// Standard output or error, under one of its names.
    #[cfg(unix)]
    Standard(u32),
    /// A pipe, a terminal or a device; another descriptor of this process, which may be a file (`append`).
    Special { append: bool },
}

/// A file on its way to a path.
///
/// The bytes of a regular file go to a temporary file beside it, which takes its name and mode bits in [`NewFile::finish`]
/// after it has reached the disk. If anything fails, or this is dropped, the temporary file is removed and what the path led to
/// is untouched. A link stays, and the file behind it is replaced.
#[derive(Debug)]
pub struct NewFile {
    /// As the caller names it.
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    Renamed { file: BufWriter<NamedTempFile>, target: PathBuf },
    Direct(BufWriter<File>),
}

impl NewFile {
    /// Starts a file at `path`. A pipe without a reader makes this wait for one.
    ///
    /// # Errors
    /// As [`check`]; [`Error::Io`] if no file can be made in the folder.
    pub fn create(path: &Path, form: Form) -> Result<Self> {
        let direct = |opened: io::Result<File>| {
            let file = opened.map_err(|source| Error::io(FileAction::Write, path, source))?;
            Ok(To::Direct(BufWriter::with_capacity(BUFFER, file)))
        };
        let to = match Target::of(path, form)? {
            Target::Regular { path: target, old } => {
                let file =
                    temporary(&target, old.as_ref()).map_err(|source| Error::io(FileAction::Create, path, source))?;
                To::Renamed { file: BufWriter::with_capacity(BUFFER, file), target }
            }
            #[cfg(unix)]
            Target::Standard(number) => direct(standard(number))?,
            Target::Special { append } => direct(File::options().write(true).append(append).open(path))?,
        };
        Ok(NewFile { path: path.to_path_buf(), to })
    }

    /// Puts the file in its place after it has reached the disk.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] if something else than a file has come to its place meanwhile.
    pub fn finish(self) -> Result<()> {
        self.end(true)
    }

    /// Puts the file in its place, for what can be made again: after a power failure it may be empty.
    ///
    /// # Errors
    /// As [`NewFile::finish`].
    pub fn finish_unsynced(self) -> Result<()> {
        self.end(false)
    }

    fn end(self, sync: bool) -> Result<()> {
        let NewFile { path, to } = self;
        let failed = |source| Error::io(FileAction::Write, &path, source);
        let (file, target) = match to {
            To::Direct(mut file) => return file.flush().map_err(failed),
            To::Renamed { file, target } => (file, target),
        };
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        if sync {
            file.as_file().sync_all().map_err(failed)?;
        }
        // Hours may have gone by.
        Target::of(&target, Form::Random)?;
        put(file, &target).map_err(|source| Error::io(FileAction::Rename, &path, source))?;
        // The new name is only on the disk when the folder is. Not every system lets one open a folder.
        if sync && let Ok(folder) = File::open(folder(&target)) {
            folder.sync_all().ok();
        }
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Renamed { file, .. } => file.write(bytes),
            To::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Renamed { file, .. } => file.flush(),
            To::Direct(file) => file.flush(),
        }
    }
}

/// Writes `bytes` to `path`, whole; see [`NewFile`].
///
/// # Errors
/// As [`NewFile::create`] and [`NewFile::finish`].
pub fn write(path: &Path, form: Form, bytes: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path, form)?;
    file.write_all(bytes).map_err(|source| Error::io(FileAction::Write, path, source))?;
    file.finish()
}

/// True if `path` can hold such a file, as far as that can be known without opening it: for commands that compute for long
/// before they write.
///
/// # Errors
/// [`Error::Malformed`] for a folder, a socket or a disk, and for a pipe, a terminal or a device where the form is
/// [`Form::Random`]; [`Error::Io`] if the system does not say what is there.
pub fn check(path: &Path, form: Form) -> Result<()> {
    Target::of(path, form).map(drop)
}

impl Target {
    fn of(path: &Path, form: Form) -> Result<Self> {
        let refused = |expected: &str, got: &str| Err(Error::malformed(path, Location::File, expected, got));
        let special = |got: &str, target| match form {
            Form::Stream => Ok(target),
            Form::Random => refused("a regular file, which can be read again", got),
        };
        let Some(end) = end_of_links(path) else {
            return refused("the name of a file to write", "links in a circle");
        };
        #[cfg(unix)]
        match descriptor(&end) {
            Some(1) => return special("standard output", Target::Standard(1)),
            Some(2) => return special("standard error", Target::Standard(2)),
            Some(_) => return special("an open descriptor", Target::Special { append: true }),
            None => {}
        }
        if cfg!(windows) && is_device_name(path) {
            return special("a device", Target::Special { append: false });
        }
        let old = match fs::metadata(path) {
            Ok(old) => old,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Target::Regular { path: end, old: None });
            }
            Err(source) => return Err(Error::io(FileAction::Write, path, source)),
        };
        match kind(&old) {
            Kind::Regular => Ok(Target::Regular { path: end, old: Some(old) }),
            Kind::Folder => refused("the name of a file to write", "a directory"),
            Kind::Stream(what) => special(what, Target::Special { append: false }),
            Kind::Other(what) => refused("a file to write", what),
        }
    }
}

/// Kinds of things that have a path.
#[cfg_attr(not(unix), expect(dead_code, reason = "other systems name them otherwise"))]
enum Kind {
    Regular,
    Folder,
    /// Takes bytes in order.
    Stream(&'static str),
    /// Takes none, or must not be given any.
    Other(&'static str),
}

fn kind(of: &Metadata) -> Kind {
    if of.is_file() {
        return Kind::Regular;
    }
    if of.is_dir() {
        return Kind::Folder;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let ty = of.file_type();
        if ty.is_fifo() {
            return Kind::Stream("a pipe");
        }
        if ty.is_char_device() {
            return Kind::Stream("a character device");
        }
        if ty.is_socket() {
            return Kind::Other("a socket");
        }
        if ty.is_block_device() {
            return Kind::Other("a block device");
        }
    }
    Kind::Other("neither a file nor a directory")
}

/// Where `path` leads if it is a link; what is named there need not exist. `None` if it leads nowhere.
fn end_of_links(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        #[cfg(unix)]
        if descriptor(&path).is_some() {
            // What the system shows as its link is no path.
            return Some(path);
        }
        match fs::read_link(&path) {
            Ok(link) => path = folder(&path).join(link),
            Err(_) => return Some(path),
        }
    }
    None
}

/// The number of the open descriptor that `path` is a name of: 7 for `/dev/fd/7` and `/proc/self/fd/7`. (`/dev/stdout` is a link
/// to one of these.)
#[cfg(unix)]
fn descriptor(path: &Path) -> Option<u32> {
    let in_proc = |parent: &Path| parent.starts_with("/proc") && parent.ends_with("fd");
    path.parent().filter(|parent| *parent == Path::new("/dev/fd") || in_proc(parent))?;
    path.file_name()?.to_str()?.parse().ok()
}

/// Standard output (1) or error, as it is: what is appended to a file stays behind what the file has.
#[cfg(unix)]
fn standard(number: u32) -> io::Result<File> {
    use std::os::fd::AsFd;
    let owned = if number == 1 {
        io::stdout().flush()?;
        io::stdout().as_fd().try_clone_to_owned()
    } else {
        io::stderr().as_fd().try_clone_to_owned()
    };
    owned.map(File::from)
}

/// True if Windows takes `path` for a device, wherever it is: `NUL`, `con`, `COM1`, `\\.\pipe\x`.
fn is_device_name(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_uppercase();
    let numbered = |start| name.strip_prefix(start).is_some_and(|rest| matches!(rest.as_bytes(), [b'1'..=b'9']));
    text.starts_with(r"\\.\")
        || ["NUL", "CON", "CONOUT$", "PRN", "AUX"].contains(&&*name)
        || numbered("COM")
        || numbered("LPT")
}

/// The file beside `target` that is to take its name, with the mode bits (and, where that is allowed, the owner) of the old one.
fn temporary(target: &Path, old: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let short = &name[..name.floor_char_boundary(NAME)];
    let prefix = format!(".{short}.");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".part");
    // The file is to be as readable as any other a program makes, not private as temporary files are.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.tempfile_in(folder(target))?;
    #[cfg(unix)]
    if let Some(old) = old {
        use std::os::unix::fs::{MetadataExt, fchown};
        if fchown(file.as_file(), Some(old.uid()), Some(old.gid())).is_err() {
            tracing::debug!(file = %target.display(), "the new file has another owner than the old one");
        }
        // After the owner, whose change takes bits away.
        file.as_file().set_permissions(old.permissions())?;
    }
    #[cfg(not(unix))]
    let _ = old;
    Ok(file)
}

/// Gives `file` the name `target`. Windows does not replace a file that a program has mapped, but lets it be renamed: there the old
/// file goes out of the way, and is removed at once or, if it is mapped for longer, before the next file takes the name.
fn put(file: NamedTempFile, target: &Path) -> io::Result<()> {
    if cfg!(windows) {
        old_names(target).for_each(|name| drop(fs::remove_file(name)));
    }
    let refused = match file.persist(target) {
        Ok(_) => return Ok(()),
        Err(refused) => refused,
    };
    let free = old_names(target).find(|name| !name.exists());
    let Some(aside) = free.filter(|_| cfg!(windows) && target.is_file()) else {
        return Err(refused.error);
    };
    fs::rename(target, &aside)?;
    if let Err(again) = refused.file.persist(target) {
        fs::rename(&aside, target).ok();
        return Err(again.error);
    }
    fs::remove_file(&aside).ok();
    Ok(())
}

/// Names beside `target` for files that were there.
fn old_names(target: &Path) -> impl Iterator<Item = PathBuf> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let short = name[..name.floor_char_boundary(NAME)].to_owned();
    let folder = folder(target).to_path_buf();
    (0..MOST_OLD).map(move |at| folder.join(format!(".{short}.{at}.old")))
}

/// The folder of a file that may be named without one.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in `folder`, sorted.
    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn new_file_replaces_the_old_one_only_when_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.md");
        for form in [Form::Stream, Form::Random] {
            write(&path, form, b"long text").unwrap();
            write(&path, form, b"short").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "short");
            let mut file = NewFile::create(&path, form).unwrap();
            file.write_all(&vec![1; 3 * BUFFER]).unwrap();
            drop(file);
            assert_eq!(fs::read_to_string(&path).unwrap(), "short");
        }
        let mut file = NewFile::create(&path, Form::Stream).unwrap();
        file.write_all(b"again").unwrap();
        file.finish_unsynced().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "again");
        assert_eq!(names(folder.path()), ["x.md"]);
        assert!(matches!(write(&folder.path().join("no/where"), Form::Stream, b""), Err(Error::Io { .. })));
    }

    #[test]
    fn write_accepts_the_longest_file_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = "é".repeat(127);
        write(&folder.path().join(&name), Form::Random, b"x").unwrap();
        assert_eq!(names(folder.path()), [name]);
    }

    #[test]
    fn write_to_a_folder_is_an_error_and_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        for form in [Form::Stream, Form::Random] {
            for path in [&taken, folder.path(), Path::new(".."), Path::new("/")] {
                let error = write(path, form, b"").unwrap_err();
                assert!(matches!(&error, Error::Malformed { .. }), "{error}");
                let said = error.to_string();
                assert!(said.ends_with("expected the name of a file to write, got a directory"), "{said}");
            }
        }
        assert!(taken.is_dir());
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[test]
    fn windows_device_names_are_recognised() {
        for device in ["NUL", "nul", "CONOUT$", "com1", r"\\.\pipe\x"] {
            assert!(is_device_name(Path::new(device)), "{device}");
        }
        for file in ["null", "NUL.txt", "com", "com10", "com0", "console", "x"] {
            assert!(!is_device_name(Path::new(file)), "{file}");
        }
    }

    #[cfg(unix)]
    mod unix {
        use std::os::unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
            net::UnixListener,
        };

        use super::*;

        fn mkfifo(path: &Path) {
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        }

        fn mode(path: &Path) -> u32 {
            fs::metadata(path).unwrap().permissions().mode() & 0o7777
        }

        fn refusal(path: &Path, form: Form) -> String {
            let error = check(path, form).unwrap_err();
            assert!(matches!(&error, Error::Malformed { .. }), "{error}");
            assert_eq!(NewFile::create(path, form).map(drop).unwrap_err().to_string(), error.to_string());
            error.to_string()
        }

        #[test]
        fn pipe_accepts_streams_only() {
            let folder = tempfile::tempdir().unwrap();
            let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
            mkfifo(&pipe);
            symlink("pipe", &link).unwrap();
            for path in [&pipe, &link] {
                let said = refusal(path, Form::Random);
                assert!(said.ends_with("expected a regular file, which can be read again, got a pipe"), "{said}");
                let reader = {
                    let path = path.clone();
                    std::thread::spawn(move || fs::read(path))
                };
                write(path, Form::Stream, b"a stream").unwrap();
                assert_eq!(reader.join().unwrap().unwrap(), b"a stream");
                assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
            }
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(names(folder.path()), ["link", "pipe"]);
        }

        #[test]
        fn character_device_accepts_streams_and_is_not_replaced() {
            let folder = tempfile::tempdir().unwrap();
            let null = folder.path().join("null");
            symlink("/dev/null", &null).unwrap();
            // Nothing is written before it is known that nothing would be renamed.
            assert!(matches!(Target::of(&null, Form::Stream).unwrap(), Target::Special { append: false }));
            assert!(refusal(&null, Form::Random).ends_with("got a character device"));
            write(&null, Form::Stream, b"gone").unwrap();
            assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
            assert_eq!(fs::read_link(&null).unwrap(), Path::new("/dev/null"));
            assert_eq!(names(folder.path()), ["null"]);
        }

        #[test]
        fn sockets_and_circular_links_are_errors() {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("socket");
            let listener = UnixListener::bind(&socket).unwrap();
            let circle = folder.path().join("circle");
            symlink("circle", &circle).unwrap();
            for form in [Form::Stream, Form::Random] {
                assert!(refusal(&socket, form).ends_with("expected a file to write, got a socket"));
                assert!(refusal(&circle, form).ends_with("got links in a circle"));
            }
            drop(listener);
            assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
            assert_eq!(names(folder.path()), ["circle", "socket"]);
        }

        #[test]
        fn write_through_a_link_replaces_its_target() {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("deep")).unwrap();
            let file = folder.path().join("deep/file");
            fs::write(&file, "old").unwrap();
            symlink("deep/file", folder.path().join("near")).unwrap();
            symlink(folder.path().join("near"), folder.path().join("far")).unwrap();
            for (link, text) in [("near", "new"), ("far", "newer")] {
                write(&folder.path().join(link), Form::Random, text.as_bytes()).unwrap();
                assert_eq!(fs::read_to_string(&file).unwrap(), text);
                assert!(fs::symlink_metadata(folder.path().join(link)).unwrap().is_symlink());
            }
            // What a link names need not be there yet.
            symlink("deep/later", folder.path().join("hope")).unwrap();
            write(&folder.path().join("hope"), Form::Stream, b"here").unwrap();
            assert_eq!(fs::read_to_string(folder.path().join("deep/later")).unwrap(), "here");
            assert_eq!(names(folder.path()), ["deep", "far", "hope", "near"]);
            assert_eq!(names(&folder.path().join("deep")), ["file", "later"]);
        }

        #[test]
        fn mode_bits_and_owner_are_kept() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            write(&path, Form::Random, b"1").unwrap();
            let usual = folder.path().join("usual");
            fs::write(&usual, "").unwrap();
            assert_eq!(mode(&path), mode(&usual), "a new file is as readable as any");
            for bits in [0o600, 0o640, 0o755, 0o444] {
                fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
                let old = fs::metadata(&path).unwrap();
                write(&path, Form::Random, b"2").unwrap();
                let new = fs::metadata(&path).unwrap();
                assert_eq!(mode(&path), bits);
                assert_eq!((new.uid(), new.gid()), (old.uid(), old.gid()));
                assert_ne!(new.ino(), old.ino(), "it was replaced, not overwritten");
            }
        }

        #[test]
        fn finish_does_not_replace_a_pipe_created_since() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            let mut file = NewFile::create(&path, Form::Random).unwrap();
            file.write_all(b"x").unwrap();
            mkfifo(&path);
            assert!(file.finish().unwrap_err().to_string().ends_with("got a pipe"));
            assert!(fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
            assert_eq!(names(folder.path()), ["file"]);
        }

        #[test]
        fn descriptor_paths_parse_to_their_numbers() {
            let names = [
                ("/dev/fd/1", Some(1)),
                ("/proc/self/fd/2", Some(2)),
                ("/proc/17/fd/30", Some(30)),
                ("/dev/fd/x", None),
                ("/dev/fd", None),
                ("/tmp/fd/1", None),
            ];
            for (name, number) in names {
                assert_eq!(descriptor(Path::new(name)), number, "{name}");
            }
            if Path::new("/dev/stdout").exists() {
                assert!(matches!(Target::of(Path::new("/dev/stdout"), Form::Stream), Ok(Target::Standard(1))));
                assert!(refusal(Path::new("/dev/stderr"), Form::Random).ends_with("got standard error"));
            }
        }

        #[test]
        fn open_descriptor_is_appended_to() {
            use std::os::fd::AsRawFd;
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            fs::write(&path, "before, ").unwrap();
            let open = File::options().append(true).open(&path).unwrap();
            let name = PathBuf::from(format!("/dev/fd/{}", open.as_raw_fd()));
            write(&name, Form::Stream, b"after").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "before, after");
            assert_eq!(names(folder.path()), ["log"]);
        }
    }
}
