//! Markers of steps that have been seen to end processes. A file says what is to be done without if this process ends within the
//! step; a lock on it, which the system releases however a process ends, says that the step is still under way.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;

use super::Fallback;

/// Beginning and end of the files' names.
const NAME: (&str, &str) = ("gpu-step-", ".json");
/// Time after which a file without contents was left by a process that ended before it wrote any.
const OLD: Duration = Duration::from_secs(60);
/// Most bytes of a file.
const MOST_BYTES: u64 = 1 << 16;

/// A step of using a driver that has been seen to end processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RiskyStep {
    /// The adapters of a backend are looked for.
    Enumeration,
    /// An adapter is opened.
    Opening,
    /// Matrix products in hardware are tried.
    Trial,
    /// The first kernel with some features is compiled.
    Pipeline,
    /// The first submission is computed.
    Submission,
    /// A window comes up.
    Window,
}

/// Files of the markers of this process.
static HELD: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the markers of this process, which is about to be ended on purpose: that is no failure of a driver.
pub fn withdraw_markers() {
    for path in HELD.lock().drain(..) {
        let _ = fs::remove_file(path);
    }
}

/// The marker of a step that is under way: its file is removed when this is dropped.
#[derive(Debug)]
pub struct StepMarker {
    file: File,
    path: PathBuf,
}

impl StepMarker {
    /// Marks a step in `folder`, after which `fallback` is in force if this process ends within it. `None` where no file can be
    /// written or locked: the step goes unmarked.
    pub(super) fn new(folder: &Path, fallback: &Fallback) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (begin, end) = NAME;
        let path = folder.join(format!("{begin}{}-{}{end}", process::id(), NUMBER.fetch_add(1, Relaxed)));
        let made = || {
            fs::create_dir_all(folder)?;
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
            let mut marker = StepMarker { file, path: path.clone() };
            marker.file.lock()?;
            let text = serde_json::to_vec(fallback)?;
            marker.file.write_all(&text)?;
            HELD.lock().push(path.clone());
            Ok::<_, std::io::Error>(marker)
        };
        made().inspect_err(|error| tracing::debug!(%error, "a step goes unmarked")).ok()
    }
}

impl Drop for StepMarker {
    fn drop(&mut self) {
        // A process that has opened the file already finds nothing in it.
        let _ = self.file.set_len(0);
        HELD.lock().retain(|path| *path != self.path);
        let _ = fs::remove_file(&self.path);
        // Closing alone releases the lock later, if a program that is just being started has inherited the file.
        let _ = self.file.unlock();
    }
}

/// The fallbacks of steps within which processes have ended, whose markers in `folder` are removed.
pub(super) fn left_over(folder: &Path) -> Vec<Fallback> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_marker = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        name.starts_with(NAME.0) && name.ends_with(NAME.1)
    };
    let paths = entries.flatten().map(|entry| entry.path()).filter(is_marker);
    paths.filter_map(|path| take(&path)).collect()
}

/// The fallback of a marker that no process holds.
fn take(path: &Path) -> Option<Fallback> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    // Of a step that is under way.
    file.try_lock().ok()?;
    let known = file.metadata().ok()?;
    let is_young = known.modified().ok().and_then(|time| time.elapsed().ok()).is_none_or(|age| age < OLD);
    let mut text = Vec::new();
    (&file).take(MOST_BYTES).read_to_end(&mut text).ok()?;
    // A process that is just about to lock it will write.
    if !(text.is_empty() && is_young) {
        let _ = fs::remove_file(path);
    }
    let _ = file.unlock();
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::gpu::{AdapterId, FallbackPart};

    fn fallback() -> Fallback {
        let [name, backend, driver, pci_bus_id] = ["Arc", "vulkan", "Mesa 25", ""].map(str::to_owned);
        Fallback::new(AdapterId { name, backend, driver, pci_bus_id }, FallbackPart::Adapter, "the program ended")
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn process_that_is_ended_on_purpose_leaves_no_marker() {
        let folder = tempfile::tempdir().unwrap();
        let markers = [(); 2].map(|()| StepMarker::new(folder.path(), &fallback()).unwrap());
        assert_eq!(files(folder.path()), 2);
        withdraw_markers();
        // Under Windows a file that is removed while it is open may keep its name until it is closed, as it is when the process ends.
        assert!(files(folder.path()) == 0 || cfg!(windows));
        // What ends after all has nothing left to remove.
        drop(markers);
        drop(StepMarker::new(folder.path(), &fallback()));
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn markers_are_left_over_only_by_steps_that_did_not_end() {
        let folder = tempfile::tempdir().unwrap();
        let marker = StepMarker::new(folder.path(), &fallback()).unwrap();
        let text = fs::read(&marker.path).unwrap();
        // Another process looks meanwhile.
        assert!(left_over(folder.path()).is_empty());
        assert_eq!(files(folder.path()), 1);
        let mut opened = File::open(&marker.path).unwrap();
        drop(marker);
        let mut rest = Vec::new();
        assert_eq!(
            opened.read_to_end(&mut rest).unwrap(),
            0,
            "a step that has ended leaves nothing to those that look"
        );
        #[cfg(windows)]
        drop(opened);
        assert_eq!(files(folder.path()), 0);
        // A process that ends takes its lock with it, and leaves the file.
        fs::write(folder.path().join("gpu-step-1-0.json"), &text).unwrap();
        assert_eq!(left_over(folder.path()), [fallback_of(&text)]);
        assert_eq!(files(folder.path()), 0);
    }

    fn fallback_of(text: &[u8]) -> Fallback {
        serde_json::from_slice(text).unwrap()
    }

    #[test]
    fn damaged_markers_go_and_young_empty_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("gpu-step-1-0.json");
        for text in [&b"{"[..], b"\0", b"[]"] {
            fs::write(&at, text).unwrap();
            assert!(left_over(folder.path()).is_empty() && !at.exists());
        }
        fs::write(&at, b"").unwrap();
        assert!(left_over(folder.path()).is_empty() && at.exists());
        let old = fs::FileTimes::new().set_modified(std::time::SystemTime::now() - 2 * OLD);
        File::options().write(true).open(&at).unwrap().set_times(old).unwrap();
        assert!(left_over(folder.path()).is_empty() && !at.exists());
        assert!(StepMarker::new(&at.join("below"), &fallback()).is_some(), "the folder is made");
        fs::write(at.with_extension("txt"), b"").unwrap();
        assert!(StepMarker::new(&at.with_extension("txt"), &fallback()).is_none());
    }

    #[test]
    fn markers_of_a_start_cost_little() {
        let folder = tempfile::tempdir().unwrap();
        let start = || {
            let started = Instant::now();
            for _ in 0..6 {
                drop(StepMarker::new(folder.path(), &fallback()).unwrap());
            }
            left_over(folder.path());
            started.elapsed()
        };
        let best = (0..20).map(|_| start()).min().unwrap();
        println!("markers of a start: {best:?}");
        // Files cost more there: security programs look at each.
        let most = Duration::from_millis(if cfg!(windows) { 20 } else { 2 });
        assert!(best < most, "{best:?}");
    }
}
