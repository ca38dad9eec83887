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
fn temporary_files_are_known_until_they_are_finished() {
    let folder = tempfile::tempdir().unwrap();
    let known = || UNFINISHED.lock().iter().filter(|path| path.starts_with(folder.path())).count();
    let start = |name: &str| NewFile::create(&folder.path().join(name), Form::Random).unwrap();
    let files = [start("a"), start("b"), start("c")];
    assert_eq!(known(), 3);
    let [a, b, c] = files;
    a.finish().unwrap();
    drop(b);
    assert_eq!((known(), names(folder.path()).len()), (1, 2));
    remove_unfinished();
    assert_eq!((known(), names(folder.path())), (0, vec!["a".to_owned()]));
    assert!(c.finish().is_err());
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
        // First checks that the device would not be renamed, then writes to it.
        assert!(matches!(FileTarget::of(&null, Form::Stream).unwrap(), FileTarget::Special { append: false }));
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
            assert!(refusal(&circle, form).ends_with("got symbolic links that form a circle"));
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
        // The file that a link names need not exist yet.
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
            assert!(matches!(FileTarget::of(Path::new("/dev/stdout"), Form::Stream), Ok(FileTarget::Standard(1))));
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
