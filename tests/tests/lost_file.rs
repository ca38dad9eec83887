//! A model file that is truncated while it is mapped: the process ends with a message that names the file and status 2,
//! and never computes with what is not there. The program starts itself again to be the process that ends.

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
};

use thermocline_engine::format::{Opened, ReadMode, explain_lost_files, open};
use thermocline_tests::raw_gguf::{RawGguf, tensor};

const LEN: usize = 1 << 20;

fn main() -> ExitCode {
    let arguments = env::args().collect::<Vec<_>>();
    if let [_, child, mode, path] = arguments.as_slice()
        && child == "child"
    {
        return use_and_lose(Path::new(path), if mode == "map" { ReadMode::Map } else { ReadMode::Read });
    }
    // Only unix lets a file that is mapped be truncated.
    if cfg!(unix) {
        for (mode, status, message) in [("map", 2, "the file was truncated"), ("read", 0, "")] {
            let folder = tempfile::tempdir().expect("a folder for the test");
            let path = folder.path().join("model.gguf");
            let mut file = RawGguf { data: LEN, ..RawGguf::empty() };
            file.tensors.push(tensor("t", &[LEN as u64], 24, 0));
            fs::write(&path, file.to_bytes()).expect("a file for the test");
            let program = env::current_exe().expect("this program");
            let child = Command::new(program).args(["child", mode]).arg(&path).output().expect("a child");
            let said = String::from_utf8_lossy(&child.stderr);
            assert_eq!(child.status.code(), Some(status), "{mode}: {said}");
            assert!(said.contains(message), "{mode}: {said}");
            assert!(message.is_empty() || said.contains(&*path.to_string_lossy()), "{mode}: {said}");
        }
    }
    ExitCode::SUCCESS
}

fn use_and_lose(path: &Path, mode: ReadMode) -> ExitCode {
    explain_lost_files();
    let Ok(Opened::Checkpoint(file)) = open(path, mode) else { return ExitCode::from(3) };
    let sum = || file.tensors()[0].data.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let before = sum();
    fs::File::options().write(true).open(path).and_then(|file| file.set_len(4096)).expect("a truncation");
    if sum() == before { ExitCode::SUCCESS } else { ExitCode::from(4) }
}
