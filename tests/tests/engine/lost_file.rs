//! A model file that is truncated while it is mapped: the process ends with a message that names the file and status 2,
//! and never computes with what is not there.

// Only unix lets a file that is mapped be truncated.
#![cfg(unix)]

use std::{fs, path::Path, process::exit};

use thermocline_engine::format::{Opened, ReadMode, explain_lost_files, open};
use thermocline_tests::{
    own_process,
    raw_gguf::{RawGguf, tensor},
};

const LEN: usize = 1 << 20;

/// Status of a process that has read the same data before and after.
const SAME: i32 = 10;

/// Environment variable with the file that the process is to read.
const FILE: &str = "THERMOCLINE_TEST_FILE";

#[test]
fn truncated_model_file_ends_the_process_or_does_not_matter() {
    if let Some(part) = own_process::part() {
        let path = std::env::var_os(FILE).expect("a file");
        use_and_lose(Path::new(&path), if part == "map" { ReadMode::Map } else { ReadMode::Read });
    }
    for (part, status, message) in [("map", 2, "the file was truncated"), ("read", SAME, "")] {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("model.gguf");
        let mut file = RawGguf { data: LEN, ..RawGguf::empty() };
        file.tensors.push(tensor("t", &[LEN as u64], 24, 0));
        fs::write(&path, file.to_bytes()).expect("a file for the test");
        let name = "lost_file::truncated_model_file_ends_the_process_or_does_not_matter";
        let child = own_process::start(name, part).env(FILE, &path).output().expect("a process");
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.code(), Some(status), "{part}: {said}");
        assert!(said.contains(message), "{part}: {said}");
        assert!(message.is_empty() || said.contains(&*path.to_string_lossy()), "{part}: {said}");
    }
}

/// Reads the file, truncates it and reads it again; ends the process.
fn use_and_lose(path: &Path, mode: ReadMode) -> ! {
    explain_lost_files();
    let Ok(Opened::Checkpoint(file)) = open(path, mode) else { exit(3) };
    let sum = || file.tensors()[0].data.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let before = sum();
    fs::File::options().write(true).open(path).and_then(|file| file.set_len(4096)).expect("a truncation");
    exit(if sum() == before { SAME } else { 4 })
}
