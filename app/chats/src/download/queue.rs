//! The download queue. Downloads run in the background, one after the other.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{DownloadError, DownloadProgress, DownloadSource, FetchedFile, agent, fetch, transfer::PART_FILES};

/// Seconds before each attempt after a temporary failure; an attempt that receives data resets the
/// count.
const RETRY_SECONDS: [u64; 5] = [1, 3, 10, 30, 60];

/// Number of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DownloadId(u64);

/// A requested file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadRequest {
    /// Address, length and checksum of the file.
    pub source: DownloadSource,
    /// Path of the complete file.
    pub to: PathBuf,
}

/// State of a download.
#[derive(Debug, Clone)]
pub enum DownloadState {
    /// Waiting for other downloads.
    Waiting,
    /// Being received.
    Running,
    /// Failed, and waiting for the next attempt.
    Retrying {
        /// The failure.
        reason: Arc<DownloadError>,
        /// Time of the next attempt.
        at: Instant,
    },
    /// Paused by the user, who can resume it.
    Paused,
    /// Complete.
    Done(FetchedFile),
    /// Failed. The user can resume it.
    Failed(Arc<DownloadError>),
}

/// Current status of a download.
#[derive(Debug, Clone)]
pub struct DownloadStatus {
    /// Number of the download.
    pub id: DownloadId,
    /// The requested file.
    pub request: DownloadRequest,
    /// State.
    pub state: DownloadState,
    /// Bytes received.
    pub progress: DownloadProgress,
    /// Bytes per second since the attempt started; 0 unless running.
    pub rate: f64,
}

/// All downloads of the program. Dropping the queue stops them. Received parts stay on disk, and
/// the same request resumes them.
#[derive(Debug)]
pub struct Downloads {
    queue: Arc<DownloadQueue>,
    thread: Option<JoinHandle<()>>,
}

struct DownloadQueue {
    list: Mutex<QueueEntries>,
    changed: Condvar,
    /// Called after every change, on the thread that made it.
    notify: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for DownloadQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DownloadQueue").field("list", &self.list).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct QueueEntries {
    all: Vec<DownloadStatus>,
    next: u64,
    ended: bool,
}

impl DownloadQueue {
    /// Changes a download if it is still listed.
    fn change(&self, id: DownloadId, change: impl FnOnce(&mut DownloadStatus)) {
        if let Some(status) = self.list.lock().all.iter_mut().find(|it| it.id == id) {
            change(status);
        }
        self.changed.notify_all();
        (self.notify)();
    }
}

impl Downloads {
    /// Creates an empty queue. `notify` is called after every change of a download.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> std::io::Result<Self> {
        let (list, changed) = (Mutex::default(), Condvar::new());
        let queue = Arc::new(DownloadQueue { list, changed, notify: Box::new(notify) });
        let work = Arc::clone(&queue);
        let thread = thread::Builder::new().name("downloads".to_owned()).spawn(move || run_queue(&work))?;
        Ok(Downloads { queue, thread: Some(thread) })
    }

    /// Adds a download to the end of the queue. If the file is already listed, that download is
    /// resumed instead.
    pub fn add(&self, request: DownloadRequest) -> DownloadId {
        let mut list = self.queue.list.lock();
        if let Some(status) = list.all.iter().find(|it| it.request.to == request.to) {
            let id = status.id;
            drop(list);
            self.resume(id);
            return id;
        }
        let id = DownloadId(list.next);
        list.next += 1;
        let progress = DownloadProgress { done: 0, total: request.source.bytes };
        list.all.push(DownloadStatus { id, request, state: DownloadState::Waiting, progress, rate: 0.0 });
        drop(list);
        self.queue.changed.notify_all();
        id
    }

    /// Current status of all downloads.
    pub fn list(&self) -> Vec<DownloadStatus> {
        self.queue.list.lock().all.clone()
    }

    /// Pauses a download.
    pub fn pause(&self, id: DownloadId) {
        self.queue.change(id, |status| {
            if !matches!(status.state, DownloadState::Done(_) | DownloadState::Failed(_)) {
                status.state = DownloadState::Paused;
            }
        });
    }

    /// Resumes a download that was paused or has failed.
    pub fn resume(&self, id: DownloadId) {
        self.queue.change(id, |status| {
            if !matches!(status.state, DownloadState::Done(_) | DownloadState::Running | DownloadState::Waiting) {
                status.state = DownloadState::Waiting;
            }
        });
    }

    /// Removes a download from the list. The received part stays unless `discard` is set.
    pub fn remove(&self, id: DownloadId, discard: bool) {
        let mut list = self.queue.list.lock();
        let removed = list.all.iter().position(|it| it.id == id).map(|at| list.all.remove(at));
        drop(list);
        self.queue.changed.notify_all();
        if let Some(status) = removed.filter(|_| discard) {
            for extension in PART_FILES {
                // A download that has not started has no part.
                let _ = std::fs::remove_file(status.request.to.with_added_extension(extension));
            }
        }
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.queue.list.lock().ended = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was already reported by the thread.
            let _ = thread.join();
        }
    }
}

/// Runs the downloads one after the other until the queue ends.
fn run_queue(queue: &DownloadQueue) {
    let agent = agent();
    let mut failures: Vec<(DownloadId, usize)> = Vec::new();
    while let Some((id, request)) = next_due(queue) {
        let mut meter = RateMeter { since: Instant::now(), from: None, reported: None };
        let mut received = false;
        let mut progress = |now: DownloadProgress| {
            received |= meter.from.is_some_and(|from| now.done > from);
            let rate = meter.rate(now.done);
            if meter.due() {
                queue.change(id, |status| (status.progress, status.rate) = (now, rate));
            }
            let list = queue.list.lock();
            let wanted = list.all.iter().any(|it| it.id == id && matches!(it.state, DownloadState::Running));
            if wanted && !list.ended { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let result = fetch(&agent, &request.source, &request.to, &mut progress);
        let failed = failures.iter().position(|(of, _)| *of == id).map_or(0, |at| failures.swap_remove(at).1);
        let failed = if received { 0 } else { failed };
        queue.change(id, |status| {
            status.rate = 0.0;
            status.state = match result {
                Ok(fetched) => {
                    status.progress = DownloadProgress { done: fetched.bytes, total: Some(fetched.bytes) };
                    DownloadState::Done(fetched)
                }
                // The caller that stopped the download has set its state.
                Err(DownloadError::Stopped) if matches!(status.state, DownloadState::Running) => DownloadState::Paused,
                Err(DownloadError::Stopped) => return,
                Err(error) => match RETRY_SECONDS.get(failed).filter(|_| error.is_passing()) {
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

/// Waits for the next download that is due. Returns `None` when the queue ends.
fn next_due(queue: &DownloadQueue) -> Option<(DownloadId, DownloadRequest)> {
    let mut list = queue.list.lock();
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
            return Some((status.id, status.request.clone()));
        }
        let times = list.all.iter().filter_map(|it| match it.state {
            DownloadState::Retrying { at, .. } => Some(at.saturating_duration_since(now)),
            _ => None,
        });
        let wait = times.min().unwrap_or(Duration::from_secs(3600));
        queue.changed.wait_for(&mut list, wait);
    }
}

/// Transfer rate of an attempt, and the time of the last report.
struct RateMeter {
    since: Instant,
    from: Option<u64>,
    reported: Option<Instant>,
}

impl RateMeter {
    fn rate(&mut self, done: u64) -> f64 {
        let from = *self.from.get_or_insert(done);
        let seconds = self.since.elapsed().as_secs_f64();
        if seconds < 0.2 { 0.0 } else { done.saturating_sub(from) as f64 / seconds }
    }

    /// `true` at most ten times a second.
    fn due(&mut self) -> bool {
        let due = self.reported.is_none_or(|reported| reported.elapsed() >= Duration::from_millis(100));
        if due {
            self.reported = Some(Instant::now());
        }
        due
    }
}
