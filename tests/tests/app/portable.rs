//! A portable program, which keeps all its files beside itself. The test needs a system without a
//! display, because the program then runs in the terminal.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use thermocline_tests::terminal::{Ran, program, run};

/// Arguments of a command that measures the machine and stores the measurement.
const MEASURE: [&str; 6] = ["plan", "--json", "--vram", "16MiB", "--device", "0"];

/// The program on a USB stick, with a separate home folder.
struct Stick {
    folder: tempfile::TempDir,
}

impl Stick {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["stick", "home"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::copy(program(), folder.path().join("stick/thermocline")).unwrap();
        Stick { folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("stick/thermocline-data")
    }

    fn run(&self, args: &[&str], input: &str) -> Ran {
        run(self.command(args), input.as_bytes())
    }

    fn command(&self, args: &[&str]) -> Command {
        let home = self.folder.path().join("home");
        let mut command = Command::new(self.folder.path().join("stick/thermocline"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in ["THERMOCLINE_DATA", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        for name in ["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "APPIMAGE"] {
            command.env_remove(name);
        }
        // The graphics driver would keep its own cache of shaders.
        command.env("HOME", &home).env("XDG_RUNTIME_DIR", &home).env("MESA_SHADER_CACHE_DISABLE", "true");
        command
    }

    /// Runs the command that stores a measurement of the machine.
    fn measure(&self) {
        self.run(&MEASURE, "").json();
    }

    fn at_home(&self) -> Vec<PathBuf> {
        files(&self.folder.path().join("home"))
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn portable_program_keeps_its_data_beside_itself() {
    let stick = Stick::new();
    assert!(stick.run(&["--portable"], "Hi\n").ok().split_whitespace().count() > 5);
    assert!(stick.data().is_dir());
    stick.measure();
    assert!(!files(&stick.data().join("cache")).is_empty());
    assert_eq!(stick.at_home(), Vec::<PathBuf>::new());
}

#[test]
fn folder_of_the_environment_comes_before_the_one_beside_the_program() {
    let stick = Stick::new();
    fs::create_dir(stick.data()).unwrap();
    let named = stick.folder.path().join("named");
    let mut command = stick.command(&MEASURE);
    command.env("THERMOCLINE_DATA", &named);
    run(command, b"").json();
    assert!(!files(&named.join("cache")).is_empty());
    assert!(files(&stick.data()).is_empty() && stick.at_home().is_empty());
    // A folder with an empty name does not count.
    let mut command = stick.command(&MEASURE);
    command.env("THERMOCLINE_DATA", "");
    run(command, b"").json();
    assert!(!files(&stick.data().join("cache")).is_empty() && stick.at_home().is_empty());
}

#[test]
fn installed_program_keeps_its_data_in_the_home_folder() {
    let stick = Stick::new();
    stick.measure();
    assert!(!stick.data().exists());
    let cache = stick.folder.path().join("home/.cache/thermocline");
    assert!(stick.at_home().iter().any(|path| path.starts_with(&cache)), "{:?}", stick.at_home());
}

#[test]
fn portable_program_without_a_data_folder_is_an_error() {
    let stick = Stick::new();
    fs::write(stick.data(), "a file").unwrap();
    let error = stick.run(&["--portable"], "").refusal();
    assert!(error.contains("thermocline-data") && error.contains("can write"), "{error}");
}
