//! A model file is truncated while it is mapped. Its readers get an error that names the file, the
//! process continues, and no result is computed from missing data.

// Only Unix can truncate a mapped file.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::exit,
    sync::mpsc::Receiver,
};

use thermocline_engine::{
    Error,
    format::{Opened, ReadMode, open, survive_lost_files},
    model::{LoadOptions, Model, convert},
    quant::TensorType,
    session::{ContextPolicy, Engine, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions},
};
use thermocline_tests::{
    own_process,
    raw_gguf::{RawGguf, tensor},
};

use super::models::fixtures;

const LEN: usize = 1 << 20;

/// Exit codes of a process that read the same data twice, and of a process that got the error.
const SAME: i32 = 10;
const TOLD: i32 = 11;

/// Environment variable with the file that the process reads.
const FILE: &str = "THERMOCLINE_TEST_FILE";

#[test]
fn truncated_file_reads_as_zeros_and_is_told_of() {
    if let Some(part) = own_process::part() {
        let path = std::env::var_os(FILE).expect("a file");
        use_and_lose(Path::new(&path), if part == "map" { ReadMode::Map } else { ReadMode::Read });
    }
    for (part, status) in [("map", TOLD), ("read", SAME)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, raw_file()).unwrap();
        let name = "lost_file::truncated_file_reads_as_zeros_and_is_told_of";
        let child = own_process::start(name, part).env(FILE, &path).output().unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.code(), Some(status), "{part}: {said}");
    }
}

fn raw_file() -> Vec<u8> {
    let mut file = RawGguf { data: LEN, ..RawGguf::empty() };
    file.tensors.push(tensor("t", &[LEN as u64], 24, 0));
    file.to_bytes()
}

/// Reads the file, truncates it, reads it again and ends the process.
fn use_and_lose(path: &Path, mode: ReadMode) -> ! {
    survive_lost_files();
    let Ok(Opened::Checkpoint(file)) = open(path, mode) else { exit(3) };
    let sum = || file.tensors()[0].data.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let before = sum();
    assert!(file.files().check().is_ok());
    truncate(path, 4096);
    let after = sum();
    exit(match file.files().check() {
        Ok(()) if after == before => SAME,
        Err(Error::FileLost { path: lost }) if lost == path && after < before => TOLD,
        _ => 4,
    })
}

fn truncate(path: &Path, len: u64) {
    fs::File::options().write(true).open(path).and_then(|file| file.set_len(len)).unwrap();
}

/// The rest of a page that is truncated in its middle reads as zeros without a fault.
#[test]
fn file_that_loses_a_part_of_a_page_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = raw_file();
    fs::write(&path, &bytes).unwrap();
    let Opened::Checkpoint(file) = open(&path, ReadMode::Map).unwrap() else { panic!() };
    truncate(&path, bytes.len() as u64 - 1);
    assert!(matches!(file.files().check(), Err(Error::FileLost { .. })));
    // The file grows again, with other contents at its end.
    truncate(&path, bytes.len() as u64);
    assert!(matches!(file.files().check(), Err(Error::FileLost { .. })));
}

/// Makes a small model in its own file.
fn model_file(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    fs::copy(fixtures().join("gguf/llama-silu-gqa-256-Q8_0.gguf"), &path).unwrap();
    path
}

fn endless() -> Request {
    Request {
        sampling: Sampling::greedy(),
        ignore_eos: true,
        on_full: ContextPolicy::Shift { keep: 1 },
        ..Request::new(Prompt::Tokens((3..40).collect()))
    }
}

/// Returns the tokens of an answer and the error that ended it.
fn rest_of(events: &Receiver<Event>) -> (Vec<u32>, Option<Error>) {
    let (mut ids, mut end) = (Vec::new(), None);
    for event in events {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Error(error) => end = Some(error),
            _ => {}
        }
    }
    (ids, end)
}

#[test]
fn answers_end_with_an_error_that_names_the_lost_file_and_other_models_go_on() {
    survive_lost_files();
    let folder = tempfile::tempdir().unwrap();
    let [lost, whole] = ["lost.gguf", "whole.gguf"].map(|name| model_file(folder.path(), name));
    let [engine, other] = [&lost, &whole].map(|path| Engine::open(path, EngineOptions::default()).unwrap());
    let session = engine.session(SessionOptions::default()).unwrap();
    let running = session.generate(endless());
    let waiting = session.generate(endless());
    while !matches!(running.recv().unwrap(), Event::Token { .. }) {}
    truncate(&lost, 4096);
    let names_it = |end: &Option<Error>| matches!(end, Some(Error::FileLost { path }) if *path == lost);
    let (ids, end) = rest_of(&running);
    assert!(names_it(&end), "{end:?}");
    // The tokens before the loss equal those of the whole model.
    let healthy = other.session(SessionOptions::default()).unwrap();
    let enough = Request { max_tokens: Some(ids.len() + 1), ..endless() };
    let (wanted, error) = rest_of(&healthy.generate(enough));
    assert!(error.is_none(), "{error:?}");
    assert_eq!(ids, wanted[1..], "computed from what is not there");
    for end in [rest_of(&waiting).1, rest_of(&session.generate(endless())).1, engine.stopped()] {
        assert!(names_it(&end), "{end:?}");
    }
    assert!(names_it(&engine.session(SessionOptions::default()).err()));
    assert!(other.stopped().is_none());
}

#[test]
fn model_whose_file_shrinks_while_it_opens_is_refused() {
    survive_lost_files();
    let folder = tempfile::tempdir().unwrap();
    let path = model_file(folder.path(), "model.gguf");
    let model = Model::open(&path, &LoadOptions::default()).unwrap();
    truncate(&path, 4096);
    let error = Engine::from_model(model, EngineOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::FileLost { path: lost } if *lost == path), "{error}");
}

/// `convert` writes nothing from zeros, and an existing target stays.
#[test]
fn conversion_of_a_file_that_shrinks_writes_nothing() {
    survive_lost_files();
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (model_file(folder.path(), "model.gguf"), folder.path().join("other.gguf"));
    fs::write(&target, "before").unwrap();
    let mut lost = false;
    let error = convert(&path, &target, TensorType::Q4_0, &mut |_, _| {
        if !std::mem::replace(&mut lost, true) {
            truncate(&path, 4096);
        }
    });
    assert!(matches!(error, Err(Error::FileLost { .. })), "{error:?}");
    assert_eq!(fs::read(&target).unwrap(), b"before");
}
