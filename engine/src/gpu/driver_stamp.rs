//! The stamp of the installed drivers: by it a start knows that it finds the drivers of an earlier one, whose adapters were looked for
//! without harm.

use std::{
    collections::BTreeSet,
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use super::fallback::PROGRAM;
use crate::{
    error::{Error, FileAction, Result},
    files::{Form, NewFile},
};

/// Name of the file in its folder.
const FILE: &str = "gpu-drivers.txt";
/// Most files of a folder that are looked at.
const MOST_FILES: usize = 256;

/// Backends, and the drivers that are installed for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DriverStamp {
    backends: BTreeSet<String>,
    /// The version of this program, and a line for each file by which drivers are found, and for each setting of the loader's.
    lines: Vec<String>,
}

impl DriverStamp {
    /// The stamp of this machine as it is now, for `backends`.
    pub fn now(backends: &[&str]) -> Self {
        let mut lines = vec![format!("thermocline {PROGRAM}")];
        places().iter().for_each(|place| describe(place, &mut lines));
        let settings = env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VK_"));
        let mut settings: Vec<String> = settings
            .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()).replace('\n', " "))
            .collect();
        settings.sort();
        lines.append(&mut settings);
        DriverStamp { backends: backends.iter().map(|it| (*it).to_owned()).collect(), lines }
    }

    /// True if the stamp in `folder` is of the same drivers, and has these backends.
    pub fn is_in(&self, folder: &Path) -> bool {
        let Ok(text) = fs::read_to_string(folder.join(FILE)) else { return false };
        let mut kept = text.lines();
        let backends: BTreeSet<String> = kept.next().unwrap_or_default().split(' ').map(str::to_owned).collect();
        self.backends.is_subset(&backends) && kept.eq(self.lines.iter().map(String::as_str))
    }

    /// Keeps it in `folder`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep(&self, folder: &Path) -> Result<()> {
        let file = folder.join(FILE);
        let failed = |error| Error::io(FileAction::Write, &file, error);
        fs::create_dir_all(folder).map_err(failed)?;
        let mut new = NewFile::create(&file, Form::Stream)?;
        let backends = self.backends.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        new.write_all(format!("{backends}\n{}\n", self.lines.join("\n")).as_bytes()).map_err(failed)?;
        new.finish_unsynced()
    }
}

/// Files, and folders of files, that change when a driver is installed, updated or removed.
fn places() -> Vec<PathBuf> {
    let folder_of = |name: &str| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    if cfg!(windows) {
        let system = folder_of("SystemRoot").unwrap_or_else(|| PathBuf::from("C:\\Windows")).join("System32");
        // A folder's time is that of the last driver that came or went.
        return ["DriverStore", "vulkan-1.dll", "d3d12.dll", "dxgi.dll"].map(|name| system.join(name)).to_vec();
    }
    if cfg!(target_vendor = "apple") {
        return vec![PathBuf::from("/System/Library/CoreServices/SystemVersion.plist")];
    }
    let home = folder_of("XDG_DATA_HOME").or_else(|| folder_of("HOME").map(|home| home.join(".local/share")));
    let fixed = ["/etc", "/usr/share", "/usr/local/share", "/usr/local/etc"].map(PathBuf::from);
    let folders = fixed.into_iter().chain(home);
    let parts = ["icd.d", "implicit_layer.d", "explicit_layer.d"];
    let places = folders.flat_map(|folder| parts.map(|part| folder.join("vulkan").join(part)));
    // The kernel's drivers, and NVIDIA's, which comes apart from it.
    places.chain(["/proc/sys/kernel/osrelease", "/proc/driver/nvidia/version"].map(PathBuf::from)).collect()
}

/// Adds a line for the file `place`, or for each file of a folder: its size and time, or contents where the kernel makes them.
fn describe(place: &Path, lines: &mut Vec<String>) {
    let Ok(known) = fs::metadata(place) else { return };
    let time =
        known.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |it| it.as_nanos());
    if place.starts_with("/proc") {
        let text = fs::read_to_string(place).unwrap_or_default();
        return lines.push(format!("{} {}", place.display(), text.lines().collect::<Vec<_>>().join(" ")));
    }
    lines.push(format!("{} {} {time}", place.display(), known.len()));
    let files = fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).take(MOST_FILES).collect();
    files.sort();
    files.iter().for_each(|file| describe(file, lines));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_of_drivers_backends_and_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("deeper");
        let both = DriverStamp::now(&["vulkan", "dx12"]);
        assert!(!both.is_in(&at), "nothing is kept");
        both.keep(&at).unwrap();
        assert!(both.is_in(&at) && DriverStamp::now(&["dx12"]).is_in(&at) && DriverStamp::now(&[]).is_in(&at));
        assert!(!DriverStamp::now(&["metal"]).is_in(&at));
        let with =
            |line: &str| DriverStamp { lines: [both.lines.clone(), vec![line.to_owned()]].concat(), ..both.clone() };
        assert!(!with("VK_DRIVER_FILES=/tmp/other.json").is_in(&at), "another setting");
        let text = fs::read_to_string(at.join(FILE)).unwrap();
        for changed in [text.replace(PROGRAM, "0.0.1"), String::new(), text[..text.len() / 2].to_owned()] {
            fs::write(at.join(FILE), changed).unwrap();
            assert!(!both.is_in(&at));
        }
    }

    #[test]
    fn files_of_a_folder_change_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let lines = || {
            let mut lines = Vec::new();
            describe(folder.path(), &mut lines);
            lines
        };
        let (file, empty) = (folder.path().join("radeon_icd.json"), lines());
        fs::write(&file, b"{}").unwrap();
        let one = lines();
        fs::write(&file, b"{ }").unwrap();
        let updated = lines();
        assert_eq!([empty.len(), one.len(), updated.len()], [1, 2, 2]);
        assert!(one[1].contains("radeon_icd.json 2 ") && updated[1].contains(" 3 "), "{one:?} {updated:?}");
        let mut none = Vec::new();
        describe(&file.join("below"), &mut none);
        assert!(none.is_empty());
    }
}
