//! Output files of commands. Only a regular file is ever replaced. Sequential output goes through a
//! pipe or a device. A command whose output is mapped or read again refuses them before it computes
//! anything.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
    thread::{self, JoinHandle},
};

use thermocline_engine::placement::Machine;
use thermocline_tests::terminal::thermocline;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models/llama-relu");
const TEXT: &str = "Once upon a time there was a little dog. He liked to run in the park and play with his red ball. ";

/// A folder with a text, a machine and one non-regular file of each kind.
struct Place {
    folder: tempfile::TempDir,
    _socket: UnixListener,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("text"), TEXT.repeat(24)).unwrap();
        Machine::typical().store(&path("machine")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        symlink("pipe", path("link")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        let socket = UnixListener::bind(path("socket")).unwrap();
        Place { folder, _socket: socket }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns arguments of each command that maps its output. The path of the output follows.
    fn mapped(&self) -> [Vec<String>; 3] {
        [
            vec!["convert", MODEL, "--type", "f32", "--out"],
            vec!["synth", "--shape", "tiny-llama", "--out"],
            vec!["prepare", "-m", "builtin", "--tokens", "64", "--out"],
        ]
        .map(owned)
    }

    fn streamed(&self) -> [Vec<String>; 8] {
        let (text, machine) = (self.path("text"), self.path("machine"));
        let (text, machine) = (text.to_str().unwrap(), machine.to_str().unwrap());
        let eval = |what, flag| vec!["eval", what, "--text", text, "--ctx", "96", "--chunks", "3", flag];
        [
            vec!["logits", "--tokens", "1,2,3", "--out"],
            eval("perplexity", "--csv"),
            eval("perplexity", "--json"),
            eval("firing", "--svg"),
            eval("kl", "--write-base"),
            vec!["eval", "sweep", "--text", text, "--ctx", "96", "--chunks", "3", "--cut", "0.5", "--svg"],
            vec!["eval", "adapt", "--profile", text, "--text", text, "--tokens", "64", "--csv"],
            vec!["plan", "--machine", machine, "--save-machine"],
        ]
        .map(owned)
    }

    /// Checks that every file is unchanged and no temporary file is left.
    #[track_caller]
    fn unharmed(&self) {
        let ty = |name: &str| fs::symlink_metadata(self.path(name)).unwrap().file_type();
        assert!(ty("pipe").is_fifo() && ty("link").is_symlink() && ty("folder").is_dir() && ty("socket").is_socket());
        assert_eq!(fs::read_dir(self.folder.path()).unwrap().count(), 6, "a temporary file is left");
    }
}

fn owned(args: Vec<&str>) -> Vec<String> {
    args.into_iter().map(str::to_owned).collect()
}

fn with<'a>(args: &'a [String], out: &'a Path) -> Vec<&'a str> {
    args.iter().map(String::as_str).chain([out.to_str().unwrap()]).collect()
}

/// Starts a thread that reads `pipe` to its end.
fn reader(pipe: &Path) -> JoinHandle<Vec<u8>> {
    let pipe = pipe.to_path_buf();
    thread::spawn(move || fs::read(pipe).unwrap())
}

#[test]
fn random_access_output_requires_a_regular_file() {
    let place = Place::new();
    for args in place.mapped() {
        for (name, got) in [("pipe", "a pipe"), ("link", "a pipe"), ("folder", "a directory"), ("socket", "a socket")] {
            let error = thermocline(&with(&args, &place.path(name))).refusal();
            assert!(error.contains(&format!("/{name}: expected ")) && error.ends_with(got), "{args:?}: {error}");
            place.unharmed();
        }
        // The link to the device is tested first. The test names the device itself only if the link
        // was refused.
        let null = place.path("null");
        symlink("/dev/null", &null).unwrap();
        assert!(thermocline(&with(&args, &null)).refusal().ends_with("got a character device"), "{args:?}");
        assert!(thermocline(&with(&args, Path::new("/dev/stdout"))).refusal().ends_with("got standard output"));
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        fs::remove_file(null).unwrap();
        place.unharmed();
    }
}

#[test]
fn sequential_output_goes_through_pipes() {
    let place = Place::new();
    let file = place.folder.path().with_extension("file");
    for args in place.streamed() {
        thermocline(&with(&args, &file)).ok();
        let whole = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        for name in ["pipe", "link"] {
            let read = reader(&place.path("pipe"));
            thermocline(&with(&args, &place.path(name))).ok();
            let read = read.join().unwrap();
            // The figures of an evaluation include speeds, which differ from run to run.
            let timed = args[0] == "eval" && !args.iter().any(|arg| arg == "--write-base");
            let alike = read.len() > whole.len() / 2 && read[..5] == whole[..5] && read.last() == whole.last();
            assert!(read == whole || timed && alike, "{args:?}: {} and {} bytes", read.len(), whole.len());
            place.unharmed();
        }
        for (name, got) in [("folder", "a directory"), ("socket", "a socket")] {
            let error = thermocline(&with(&args, &place.path(name))).refusal();
            assert!(error.contains(&format!("/{name}: expected ")) && error.ends_with(got), "{args:?}: {error}");
            place.unharmed();
        }
    }
}

#[test]
fn dev_stdout_is_appended_to() {
    let place = Place::new();
    let [_, csv, ..] = place.streamed();
    let shown = thermocline(&with(&csv, Path::new("/dev/stdout"))).ok();
    assert!(shown.contains("| perplexity") && shown.contains("\r\nperplexity,"), "{shown}");
    // If output is appended to a file, the file keeps its contents and no other file replaces it.
    let log = place.folder.path().with_extension("log");
    fs::write(&log, "before\n").unwrap();
    let program = thermocline_tests::terminal::program();
    let script = "log=$1; shift; exec \"$@\" >>\"$log\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&log).arg(program).args(with(&csv, Path::new("/dev/stdout")));
    assert!(shell.output().unwrap().status.success());
    let text = fs::read_to_string(&log).unwrap();
    fs::remove_file(&log).unwrap();
    assert!(text.starts_with("before\n") && text.contains("\r\nperplexity,"), "{text}");
    place.unharmed();
}

#[test]
fn file_keeps_its_links_and_mode_bits() {
    let place = Place::new();
    let outside = tempfile::tempdir().unwrap();
    let (file, link) = (outside.path().join("file"), outside.path().join("link"));
    let [logits, ..] = place.streamed();
    let [convert, synth, _] = place.mapped();
    for args in [logits, convert, synth] {
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let _ = fs::remove_file(&link);
        symlink("file", &link).unwrap();
        thermocline(&with(&args, &link)).ok();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("file"), "{args:?}");
        assert!(fs::read(&file).unwrap() != b"old", "{args:?}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o640, "{args:?}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2, "{args:?}");
    }
}
