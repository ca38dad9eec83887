//! A model file that shrinks while `run` or `serve` has it open: the answer ends with an error that
//! names the file. A program that is killed while it reads leaves the file as it is.

// Only Unix can truncate a mapped file.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde_json::json;
use thermocline_tests::{
    served::{CHAT, chat},
    terminal::{command, wait},
};

use super::cli_serve::Serving;

/// Makes a small model in its own file.
fn model_file(folder: &Path) -> PathBuf {
    let path = folder.join("shrinks.gguf");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf/llama-silu-gqa-256-Q8_0.gguf");
    fs::copy(fixture, &path).unwrap();
    path
}

fn truncate(path: &Path) {
    fs::File::options().write(true).open(path).and_then(|file| file.set_len(4096)).unwrap();
}

#[test]
fn run_ends_with_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = model_file(folder.path());
    let args = ["run", "-m", path.to_str().unwrap(), "--raw", "-p", "a", "--temp", "0", "--on-full", "shift"];
    let mut child = command(&args).args(["--device", "cpu", "--json", "--stream"]).spawn().unwrap();
    drop(child.stdin.take());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("token"));
    truncate(&path);
    let rest = lines.map(Result::unwrap).count();
    let code = wait(&mut child).code();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(code, Some(2), "after {rest} lines: {said}");
    assert!(said.contains(path.to_str().unwrap()) && said.contains("truncated"), "{said}");
}

#[test]
fn program_killed_while_it_reads_from_disk_leaves_the_next_answer_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = model_file(folder.path());
    let run = |more: &[&str]| {
        let mut run = command(&["run", "-m", path.to_str().unwrap(), "--raw", "-p", "a", "--temp", "0"]);
        run.args(["--device", "cpu", "--no-counts"]).args(more);
        run
    };
    let text = |more: &[&str]| {
        let done = run(&["-n", "40"]).args(more).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    };
    let (bytes, wanted) = (fs::read(&path).unwrap(), text(&[]));
    assert!(!wanted.is_empty());
    let mut child = run(&["--ram", "64KiB", "--json", "--stream", "--on-full", "shift"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!((0..20).all(|_| lines.next().unwrap().unwrap().contains("token")));
    child.kill().unwrap();
    assert!(!wait(&mut child).success());
    assert_eq!(text(&["--ram", "64KiB"]), wanted);
    assert!(fs::read(&path).unwrap() == bytes, "the model has changed");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "files are left beside the model");
}

#[test]
fn serve_ends_the_stream_with_an_error_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = model_file(folder.path());
    let args = ["-m", path.to_str().unwrap(), "--device", "cpu", "--on-full", "shift"];
    let serving = Serving::with(&args);
    let body = chat("a", json!({ "stream": true, "max_tokens": 1_000_000 }));
    let mut stream = serving.client.begin(CHAT, &body);
    assert!(stream.line_with("\"content\":\"").is_some());
    truncate(&path);
    let rest = stream.rest();
    let is_told = |text: &str| text.contains("shrinks.gguf was changed while it was open");
    assert!(is_told(&rest) && rest.contains("\"error\""), "{rest}");
    assert!(!rest.contains(folder.path().to_str().unwrap()), "{rest}");
    for _ in 0..2 {
        let error = serving.client.post(CHAT, &chat("a", json!({ "max_tokens": 1 }))).error(503);
        let message = error["message"].as_str().unwrap();
        assert!(is_told(message) && !message.contains(folder.path().to_str().unwrap()), "{error}");
    }
    let said = serving.interrupted();
    // The program reports the file at most once. Every refusal names the file.
    assert!(said.matches("error: ").count() <= 1, "{said}");
    assert_eq!(said.matches("(503)").count(), 2, "{said}");
}
