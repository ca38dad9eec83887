//! Downloads in the background, one after the other.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{DownloadError, Fetched, Progress, Source, agent, fetch};

/// Seconds before an attempt after one that failed and may pass; each attempt that brings something starts over.
const PATIENCE: [u64; 5] = [1, 3, 10, 30, 60];

/// Number of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DownloadId(u64);

/// A file to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// From where.
    pub source: Source,
    /// To where.
    pub to: PathBuf,
}

/// What is being done about a download.
#[derive(Debug, Clone)]
pub enum DownloadState {
    /// Others come first.
    Waiting,
    /// It arrives.
    Running,
    /// It failed and will be tried again.
    Retrying {
        /// Why.
        reason: Arc<DownloadError>,
        /// When.
        at: Instant,
    },
    /// Stopped by the user; can be gone on with.
    Paused,
    /// It is there.
    Done(Fetched),
    /// It failed; can be tried again.
    Failed(Arc<DownloadError>),
}

/// A download as it is now.
#[derive(Debug, Clone)]
pub struct DownloadStatus {
    /// Its number.
    pub id: DownloadId,
    /// What is wanted.
    pub wish: Wish,
    /// What is being done.
    pub state: DownloadState,
    /// How far it has come.
    pub progress: Progress,
    /// Bytes per second, lately; 0 unless running.
    pub rate: f64,
}

/// All downloads of the program. Dropping it stops them; what has arrived stays on disk, and the same wish goes on from there.
#[derive(Debug)]
pub struct Downloads {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    list: Mutex<List>,
    changed: Condvar,
    /// Called after every change, from the thread that made it.
    notify: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("list", &self.list).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct List {
    all: Vec<DownloadStatus>,
    next: u64,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a download that still exists.
    fn change(&self, id: DownloadId, change: impl FnOnce(&mut DownloadStatus)) {
        if let Some(status) = self.lock().all.iter_mut().find(|it| it.id == id) {
            change(status);
        }
        self.changed.notify_all();
        (self.notify)();
    }
}

impl Downloads {
    /// No downloads. `notify` is called whenever something about one has changed.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> std::io::Result<Self> {
        let (list, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { list, changed, notify: Box::new(notify) });
        let work = Arc::clone(&shared);
        let thread = thread::Builder::new().name("downloads".to_owned()).spawn(move || serve(&work))?;
        Ok(Downloads { shared, thread: Some(thread) })
    }

    /// Adds one behind the others. A file that is already on the list is not added again.
    pub fn add(&self, wish: Wish) -> DownloadId {
        let mut list = self.shared.lock();
        if let Some(status) = list.all.iter().find(|it| it.wish.to == wish.to) {
            let id = status.id;
            drop(list);
            self.resume(id);
            return id;
        }
        let id = DownloadId(list.next);
        list.next += 1;
        let progress = Progress { done: 0, total: wish.source.bytes };
        list.all.push(DownloadStatus { id, wish, state: DownloadState::Waiting, progress, rate: 0.0 });
        drop(list);
        self.shared.changed.notify_all();
        id
    }

    /// All of them, as they are now.
    pub fn list(&self) -> Vec<DownloadStatus> {
        self.shared.lock().all.clone()
    }

    /// Stops one; it can be gone on with.
    pub fn pause(&self, id: DownloadId) {
        self.shared.change(id, |status| {
            if !matches!(status.state, DownloadState::Done(_) | DownloadState::Failed(_)) {
                status.state = DownloadState::Paused;
            }
        });
    }

    /// Goes on with one that was paused or has failed.
    pub fn resume(&self, id: DownloadId) {
        self.shared.change(id, |status| {
            if !matches!(status.state, DownloadState::Done(_) | DownloadState::Running | DownloadState::Waiting) {
                status.state = DownloadState::Waiting;
            }
        });
    }

    /// Takes one off the list. What has arrived of it stays, unless `discard`.
    pub fn remove(&self, id: DownloadId, discard: bool) {
        let mut list = self.shared.lock();
        let removed = list.all.iter().position(|it| it.id == id).map(|at| list.all.remove(at));
        drop(list);
        self.shared.changed.notify_all();
        if let Some(status) = removed.filter(|_| discard) {
            for suffix in [".part", ".part.json"] {
                let mut name = status.wish.to.as_os_str().to_owned();
                name.push(suffix);
                // It may not have begun.
                let _ = std::fs::remove_file(name);
            }
        }
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panics were reported where they happened.
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    let agent = agent();
    let mut failures: Vec<(DownloadId, usize)> = Vec::new();
    while let Some((id, wish)) = next(shared) {
        let mut meter = Meter { since: Instant::now(), from: None, told: None };
        let mut brought = false;
        let mut progress = |now: Progress| {
            brought |= meter.from.is_some_and(|from| now.done > from);
            let rate = meter.rate(now.done);
            if meter.due() {
                shared.change(id, |status| (status.progress, status.rate) = (now, rate));
            }
            let list = shared.lock();
            let wanted = list.all.iter().any(|it| it.id == id && matches!(it.state, DownloadState::Running));
            if wanted && !list.ended { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let result = fetch(&agent, &wish.source, &wish.to, &mut progress);
        let failed = failures.iter().position(|(of, _)| *of == id).map_or(0, |at| failures.swap_remove(at).1);
        let failed = if brought { 0 } else { failed };
        shared.change(id, |status| {
            status.rate = 0.0;
            status.state = match result {
                Ok(fetched) => {
                    status.progress = Progress { done: fetched.bytes, total: Some(fetched.bytes) };
                    DownloadState::Done(fetched)
                }
                // Whoever stopped it has said what is to become of it.
                Err(DownloadError::Stopped) if matches!(status.state, DownloadState::Running) => DownloadState::Paused,
                Err(DownloadError::Stopped) => return,
                Err(error) => match PATIENCE.get(failed).filter(|_| error.is_passing()) {
                    Some(wait) => {
                        failures.push((id, failed + 1));
                        DownloadState::Retrying {
                            reason: Arc::new(error),
                            at: Instant::now() + Duration::from_secs(*wait),
                        }
                    }
                    None => DownloadState::Failed(Arc::new(error)),
                },
            };
        });
    }
}

/// Waits for the next one to be fetched; `None` at the end of the program.
fn next(shared: &Shared) -> Option<(DownloadId, Wish)> {
    let mut list = shared.lock();
    loop {
        if list.ended {
            return None;
        }
        let now = Instant::now();
        let due = |state: &DownloadState| match state {
            DownloadState::Waiting => true,
            DownloadState::Retrying { at, .. } => *at <= now,
            _ => false,
        };
        if let Some(status) = list.all.iter_mut().find(|it| due(&it.state)) {
            status.state = DownloadState::Running;
            return Some((status.id, status.wish.clone()));
        }
        let times = list.all.iter().filter_map(|it| match it.state {
            DownloadState::Retrying { at, .. } => Some(at.saturating_duration_since(now)),
            _ => None,
        });
        let wait = times.min().unwrap_or(Duration::from_secs(3600));
        list = shared.changed.wait_timeout(list, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Rate of a transfer since it began, and when it was last told.
struct Meter {
    since: Instant,
    from: Option<u64>,
    told: Option<Instant>,
}

impl Meter {
    fn rate(&mut self, done: u64) -> f64 {
        let from = *self.from.get_or_insert(done);
        let seconds = self.since.elapsed().as_secs_f64();
        if seconds < 0.2 { 0.0 } else { done.saturating_sub(from) as f64 / seconds }
    }

    /// Ten times a second is enough.
    fn due(&mut self) -> bool {
        let due = self.told.is_none_or(|told| told.elapsed() >= Duration::from_millis(100));
        if due {
            self.told = Some(Instant::now());
        }
        due
    }
}
