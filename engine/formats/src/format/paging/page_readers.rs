//! [`PageReaders`]: threads that read and drop pages, so that the disk has several requests at a
//! time and no product waits for the system's bookkeeping.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

use super::{pager_state::PageRequests, tensor_pages::PageRun};
use crate::format::{MappedFile, mmap::hints};

/// Number of threads. Each waits for the system most of the time.
const THREADS: usize = 4;
/// Most bytes of a run that a thread takes at a time.
const TAKEN_BYTES: usize = 512 << 10;
/// Most runs that a thread takes at a time.
const TAKEN_RUNS: usize = 16;

/// A mapped file whose pages are read and dropped. It does not keep the map alive.
#[derive(Debug, Clone)]
pub(super) struct PagedFile {
    pub map: Weak<dyn AsRef<[u8]> + Send + Sync>,
    pub file: Weak<MappedFile>,
}

/// What to do with a run of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageWork {
    Read,
    Drop,
}

/// Requests that no thread has taken yet.
#[derive(Debug, Default)]
struct UntakenRuns {
    drops: VecDeque<PageRun>,
    needed: VecDeque<PageRun>,
    ahead: VecDeque<PageRun>,
    /// Threads that are at work on needed pages.
    busy: usize,
    closed: bool,
}

impl UntakenRuns {
    /// Takes the next few runs. Pages to drop come first because they make room, then needed pages,
    /// then pages for later products.
    fn take(&mut self, only_needed: bool) -> Option<TakenRuns> {
        let (work, needed, from) = match () {
            () if !only_needed && !self.drops.is_empty() => (PageWork::Drop, false, &mut self.drops),
            () if !self.needed.is_empty() => (PageWork::Read, true, &mut self.needed),
            () if !only_needed && !self.ahead.is_empty() => (PageWork::Read, false, &mut self.ahead),
            () => return None,
        };
        let (mut runs, mut bytes) = (Vec::new(), 0);
        while let Some(run) = from.pop_front() {
            let end = run.end.min(run.start + TAKEN_BYTES);
            if end < run.end {
                from.push_front(PageRun { start: end, ..run });
            }
            bytes += end - run.start;
            runs.push(PageRun { end, ..run });
            if bytes >= TAKEN_BYTES || runs.len() >= TAKEN_RUNS {
                break;
            }
        }
        self.busy += usize::from(needed);
        Some(TakenRuns { work, needed, runs })
    }
}

/// Runs that one thread has taken.
struct TakenRuns {
    work: PageWork,
    needed: bool,
    runs: Vec<PageRun>,
}

/// What the threads share.
#[derive(Debug)]
struct ReaderRequests {
    files: Vec<PagedFile>,
    waiting: Mutex<UntakenRuns>,
    /// There is work, or the readers are closed.
    work: Condvar,
    /// No needed page waits for a thread.
    started: Condvar,
}

impl ReaderRequests {
    fn lock(&self) -> MutexGuard<'_, UntakenRuns> {
        // No thread panics while it holds the lock, and the requests stay valid if one does.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the system the hints for `taken`.
    fn carry_out(&self, taken: &TakenRuns) {
        for run in &taken.runs {
            let Some(PagedFile { map, file }) = self.files.get(run.file) else { continue };
            // The map may be gone, and its addresses may belong to others.
            let (Some(map), Some(file)) = (map.upgrade(), file.upgrade()) else { continue };
            let bytes: &[u8] = (*map).as_ref();
            let Some(pages) = bytes.get(run.start..run.end.min(bytes.len())) else { continue };
            match taken.work {
                PageWork::Read => hints::read_soon(pages),
                PageWork::Drop => file.forget(pages, run.start as u64),
            }
        }
        if taken.needed {
            let mut waiting = self.lock();
            waiting.busy -= 1;
            if waiting.busy == 0 && waiting.needed.is_empty() {
                self.started.notify_all();
            }
        }
    }
}

/// The threads. They end after this is dropped.
#[derive(Debug)]
pub(super) struct PageReaders(Arc<ReaderRequests>);

impl PageReaders {
    /// Starts the threads. With fewer threads, or none, pages are read by those who need them.
    pub fn new(files: Vec<PagedFile>) -> Self {
        let shared = Arc::new(ReaderRequests {
            files,
            waiting: Mutex::default(),
            work: Condvar::new(),
            started: Condvar::new(),
        });
        for number in 0..THREADS {
            let shared = Arc::clone(&shared);
            let started = thread::Builder::new().name(format!("page-reader-{number}")).spawn(move || read(&shared));
            if let Err(error) = started {
                tracing::warn!("only {number} of {THREADS} threads that read weights started: {error}");
                break;
            }
        }
        PageReaders(shared)
    }

    /// The files whose pages are read and dropped.
    pub fn files(&self) -> &[PagedFile] {
        &self.0.files
    }

    /// Drops pages before it returns.
    pub fn drop_now(&self, runs: Vec<PageRun>) {
        self.0.carry_out(&TakenRuns { work: PageWork::Drop, needed: false, runs });
    }

    /// Hands over requests. If `waits`, returns when the reads of needed pages have begun.
    pub fn request(&self, requests: PageRequests, waits: bool) {
        let PageRequests { needed, ahead, drops } = requests;
        if needed.is_empty() && ahead.is_empty() && drops.is_empty() {
            return;
        }
        let waits = waits && !needed.is_empty();
        let mut waiting = self.0.lock();
        waiting.needed.extend(needed);
        waiting.ahead.extend(ahead);
        waiting.drops.extend(drops);
        self.0.work.notify_all();
        // The caller helps.
        while waits && let Some(taken) = waiting.take(true) {
            drop(waiting);
            self.0.carry_out(&taken);
            waiting = self.0.lock();
        }
        while waits && waiting.busy > 0 {
            waiting = self.0.started.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for PageReaders {
    fn drop(&mut self) {
        // The last owner may be one of the threads, so the drop does not wait for the threads.
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

/// Main loop of a thread.
fn read(shared: &ReaderRequests) {
    let mut waiting = shared.lock();
    while !waiting.closed {
        match waiting.take(false) {
            Some(taken) => {
                drop(waiting);
                shared.carry_out(&taken);
                waiting = shared.lock();
            }
            None => waiting = shared.work.wait(waiting).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: usize) -> PageRun {
        PageRun { file: 0, start, end: start + 4096 }
    }

    /// A product that needs pages does not wait for ever after others were announced.
    #[test]
    fn request_returns_after_announcements_without_a_wait() {
        let readers = PageReaders::new(Vec::new());
        for at in 0..1000 {
            let needed = || PageRequests { needed: vec![run(at * 4096)], ..PageRequests::default() };
            readers.request(needed(), false);
            readers.request(needed(), true);
            let waiting = readers.0.lock();
            assert!(waiting.needed.is_empty() && waiting.busy == 0, "{waiting:?}");
        }
    }
}
