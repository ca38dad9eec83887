//! Crash sentinel: a small file per adapter that lists what to disable if this process ends during
//! a risky step. The process holds a lock on the file during the step. The system releases the lock
//! however the process ends. A file without a lock is therefore the trace of a crash, and the next
//! start reads it.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{Fallback, FallbackPart, fallback_file::FallbackFile};

/// Beginning and end of the files' names.
const NAME: (&str, &str) = ("gpu-step-", ".json");
/// Time after which a step counts as hung. Its file then stays when the user ends the program.
const HANG: Duration = Duration::from_secs(10);

/// A use of a driver that may end the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RiskyStep {
    /// Listing the adapters of a backend.
    Enumeration,
    /// Opening an adapter.
    Opening,
    /// Testing a kernel.
    SelfTest,
    /// Trying matrix products in hardware.
    Trial,
    /// Compiling the first kernel with some features.
    Pipeline,
    /// Computing the first submission.
    Submission,
    /// Opening a window.
    Window,
}

/// Sentinel of a step in progress. Drop it when the process has survived the step.
#[derive(Debug)]
pub struct CrashSentinel {
    file: File,
    path: PathBuf,
}

/// A sentinel file of this process.
#[derive(Debug)]
struct HeldFile {
    path: PathBuf,
    begun: Instant,
    /// False for windows, which may be hidden for a long time.
    may_hang: bool,
}

static HELD: Mutex<Vec<HeldFile>> = Mutex::new(Vec::new());

/// Removes the sentinels of this process before it ends on purpose. The sentinels of hung steps
/// stay.
pub fn withdraw_sentinels() {
    let hangs = |it: &HeldFile| it.may_hang && it.begun.elapsed() > HANG;
    HELD.lock().retain(|it| hangs(it) || fs::remove_file(&it.path).is_err());
}

impl CrashSentinel {
    /// Records in `folder` that `fallback` applies from the next start on if this process ends
    /// before the sentinel is dropped. `None` if the file cannot be written. Also `None` if another
    /// step with the same adapter is in progress, here or in another process. That step's file then
    /// covers both.
    pub(super) fn new(folder: &Path, fallback: &Fallback) -> Option<Self> {
        let is_window = fallback.part == FallbackPart::Window;
        let mut key = DefaultHasher::new();
        (&fallback.adapter, is_window).hash(&mut key);
        let path = folder.join(format!("{}{:016x}{}", NAME.0, key.finish(), NAME.1));
        let made = || {
            let text = serde_json::to_vec(&FallbackFile::new(std::slice::from_ref(fallback), &[]))?;
            fs::create_dir_all(folder)?;
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            file.try_lock()?;
            let mut sentinel = CrashSentinel { file, path: path.clone() };
            sentinel.file.set_len(0)?;
            sentinel.file.write_all(&text)?;
            HELD.lock().push(HeldFile { path, begun: Instant::now(), may_hang: !is_window });
            Ok::<_, io::Error>(sentinel)
        };
        made().inspect_err(|error| tracing::debug!(%error, "no crash sentinel could be written for this step")).ok()
    }
}

impl Drop for CrashSentinel {
    fn drop(&mut self) {
        // Another process that has already opened the file must find nothing in it.
        let _ = self.file.set_len(0);
        HELD.lock().retain(|it| it.path != self.path);
        let _ = fs::remove_file(&self.path);
        // A program that starts just now may inherit the open file. Closing alone would then keep
        // the lock.
        let _ = self.file.unlock();
    }
}

/// Returns the fallbacks of crashes, and removes their files from `folder`.
pub(super) fn left_over(folder: &Path) -> Vec<Fallback> {
    let is_sentinel = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        name.starts_with(NAME.0) && name.ends_with(NAME.1)
    };
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(is_sentinel).filter_map(|path| take(&path)).flatten().collect()
}

/// Returns the fallbacks of a file that no process holds, and removes the file.
fn take(path: &Path) -> Option<Vec<Fallback>> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    file.try_lock().ok()?;
    let left = FallbackFile::read(&file).fallbacks;
    let _ = fs::remove_file(path);
    let _ = file.unlock();
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdapterId;

    fn fallback(name: &str, part: FallbackPart) -> Fallback {
        let [name, backend, driver, pci_bus_id] = [name, "vulkan", "Mesa 25", ""].map(str::to_owned);
        Fallback::new(AdapterId { name, backend, driver, pci_bus_id }, part, "the program ended")
    }

    fn sentinel(folder: &Path) -> Option<CrashSentinel> {
        CrashSentinel::new(folder, &fallback("Arc", FallbackPart::Adapter))
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn process_that_is_ended_on_purpose_leaves_a_sentinel_only_of_a_driver_that_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let all = [("Arc", FallbackPart::Adapter), ("Iris", FallbackPart::Adapter), ("Iris", FallbackPart::Window)];
        let [quick, hung, window] =
            all.map(|(name, part)| CrashSentinel::new(folder.path(), &fallback(name, part)).unwrap());
        assert_eq!(files(folder.path()), 3);
        let long_ago = Instant::now().checked_sub(2 * HANG).unwrap();
        let old = |it: &&mut HeldFile| it.path == hung.path || it.path == window.path;
        HELD.lock().iter_mut().filter(old).for_each(|it| it.begun = long_ago);
        withdraw_sentinels();
        // On Windows a removed file keeps its name while it is open.
        assert!(files(folder.path()) == 1 || cfg!(windows));
        assert!(hung.path.exists());
        // Ending these steps later must find nothing to remove.
        drop([quick, window, hung]);
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn sentinels_are_left_over_only_by_steps_that_did_not_end() {
        let folder = tempfile::tempdir().unwrap();
        let held = sentinel(folder.path()).unwrap();
        // Another process reads the sentinels, or begins a step with the same adapter.
        assert!(left_over(folder.path()).is_empty());
        assert!(sentinel(folder.path()).is_none());
        assert_eq!(files(folder.path()), 1);
        drop(held);
        assert_eq!(files(folder.path()), 0);
        assert!(sentinel(folder.path()).is_some(), "the next step has a sentinel again");
        // A process that ends releases its lock and leaves the file.
        let crash = fallback("Arc", FallbackPart::Adapter);
        let text = serde_json::to_vec(&FallbackFile::new(std::slice::from_ref(&crash), &[])).unwrap();
        fs::write(folder.path().join("gpu-step-1.json"), text).unwrap();
        assert_eq!(left_over(folder.path()), [crash]);
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn damaged_sentinels_are_removed_and_steps_need_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("gpu-step-1.json");
        for text in [&b"{"[..], b"\0", b"[]", b""] {
            fs::write(&at, text).unwrap();
            assert!(left_over(folder.path()).is_empty() && !at.exists());
        }
        assert!(sentinel(&at.join("below")).is_some(), "the folder is made");
        fs::write(at.with_extension("txt"), b"").unwrap();
        assert!(sentinel(&at.with_extension("txt")).is_none());
    }
}
