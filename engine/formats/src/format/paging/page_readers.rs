//! [`PageReaders`]: threads that read and drop pages, so that the disk has several requests at a
//! time and no product waits for the system's bookkeeping.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use memmap2::MmapMut;

#[cfg(target_os = "linux")]
use super::fault_reader::FaultReader;
use super::{paged_file::PagedFile, pager_state::PageRequests, tensor_pages::PageRun};
use crate::format::mmap::anonymous;
#[cfg(target_os = "linux")]
use crate::format::mmap::filled::PageFiller;

/// Number of threads. Each waits for the disk most of the time.
const THREADS: usize = 8;
/// Most bytes of a run that a thread takes at a time.
const TAKEN_BYTES: usize = 512 << 10;
/// Most runs that a thread takes at a time.
const TAKEN_RUNS: usize = 16;
/// Most runs that a thread drops at a time.
const DROPPED_RUNS: usize = 1024;

/// What to do with a run of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageWork {
    Read,
    Drop,
}

/// Requests that no thread has taken yet, and those that are being carried out.
#[derive(Debug, Default)]
struct OpenRequests {
    drops: VecDeque<PageRun>,
    needed: VecDeque<PageRun>,
    ahead: VecDeque<PageRun>,
    /// Pages that threads are reading.
    reading: Vec<PageRun>,
    /// Threads that are at work on needed pages.
    busy: usize,
    closed: bool,
}

impl OpenRequests {
    /// Takes the next few runs. Pages to drop come first because they make room, then needed pages,
    /// then pages for later products.
    fn take(&mut self, only_needed: bool) -> Option<TakenRuns> {
        if !only_needed && let Some(runs) = self.take_drops() {
            return Some(TakenRuns { work: PageWork::Drop, needed: false, runs });
        }
        let needed = !self.needed.is_empty();
        let from = match () {
            () if needed => &mut self.needed,
            () if !only_needed && !self.ahead.is_empty() => &mut self.ahead,
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
        self.reading.extend(&runs);
        Some(TakenRuns { work: PageWork::Read, needed, runs })
    }

    /// Takes runs to drop, except those that a thread is reading.
    fn take_drops(&mut self) -> Option<Vec<PageRun>> {
        let mut runs = Vec::new();
        for _ in 0..self.drops.len().min(DROPPED_RUNS) {
            let Some(run) = self.drops.pop_front() else { break };
            if self.is_reading(&[run]) {
                self.drops.push_back(run);
            } else {
                runs.push(run);
            }
        }
        (!runs.is_empty()).then_some(runs)
    }

    /// Moves the parts of announced runs that a product needs now to the needed ones. `now` is in
    /// the order of the addresses.
    fn need_now(&mut self, now: &[PageRun]) {
        for run in std::mem::take(&mut self.ahead) {
            let first = now.partition_point(|it| (it.file, it.end) <= (run.file, run.start));
            let after = now.partition_point(|it| (it.file, it.start) < (run.file, run.end));
            if first >= after {
                self.ahead.push_back(run);
                continue;
            }
            let (start, end) = (run.start.max(now[first].start), run.end.min(now[after - 1].end));
            self.needed.push_back(PageRun { start, end, ..run });
            let others = [PageRun { end: start, ..run }, PageRun { start: end, ..run }];
            self.ahead.extend(others.into_iter().filter(|run| run.len() > 0));
        }
    }

    /// True if a thread is reading pages of `runs`.
    fn is_reading(&self, runs: &[PageRun]) -> bool {
        self.reading.iter().any(|read| runs.iter().any(|run| run.overlaps(read)))
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
struct SharedRequests {
    files: Arc<Vec<PagedFile>>,
    open: Mutex<OpenRequests>,
    /// There is work, or the readers are closed.
    work: Condvar,
    /// A thread has read pages.
    done: Condvar,
    /// Memory for reads, which no thread uses now.
    buffers: Mutex<Vec<MmapMut>>,
}

impl SharedRequests {
    fn lock(&self) -> MutexGuard<'_, OpenRequests> {
        // No thread panics while it holds the lock, and the requests stay valid if one does.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or drops pages.
    fn carry_out(&self, taken: &TakenRuns) {
        match taken.work {
            PageWork::Read => self.read(&taken.runs),
            PageWork::Drop => {
                for of_file in taken.runs.chunk_by(|a, b| a.file == b.file) {
                    let file = of_file.first().and_then(|run| self.files.get(run.file));
                    file.into_iter().for_each(|file| file.drop_pages(of_file));
                }
                return;
            }
        }
        let mut open = self.lock();
        open.busy -= usize::from(taken.needed);
        for run in &taken.runs {
            let at = open.reading.iter().position(|read| read == run);
            at.map(|at| open.reading.swap_remove(at));
        }
        self.done.notify_all();
        if !open.drops.is_empty() {
            self.work.notify_one();
        }
    }

    fn read(&self, runs: &[PageRun]) {
        let buffers = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = buffers().pop();
        // Without memory, products read the pages when they access them.
        let Some(mut buffer) = kept.or_else(|| anonymous(TAKEN_BYTES, "a buffer for weights").ok()) else { return };
        for run in runs {
            self.files.get(run.file).into_iter().for_each(|file| file.read(run, &mut buffer));
        }
        buffers().push(buffer);
    }
}

/// The threads. They end after this is dropped.
#[derive(Debug)]
pub(super) struct PageReaders {
    shared: Arc<SharedRequests>,
    #[cfg(target_os = "linux")]
    _faults: Option<FaultReader>,
}

impl PageReaders {
    /// Starts the threads. With fewer threads, or none, pages are read by those who need them.
    /// `absent` returns the pages of a run that the pager counts as absent.
    pub fn new(files: Vec<PagedFile>, absent: impl Fn(PageRun) -> Vec<PageRun> + Send + 'static) -> Self {
        let files = Arc::new(files);
        let shared = Arc::new(SharedRequests {
            files: Arc::clone(&files),
            open: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            buffers: Mutex::default(),
        });
        for number in 0..THREADS {
            let shared = Arc::clone(&shared);
            let started = thread::Builder::new().name(format!("page-reader-{number}")).spawn(move || work(&shared));
            if let Err(error) = started {
                tracing::warn!("only {number} of {THREADS} threads that read weights started: {error}");
                break;
            }
        }
        files.iter().for_each(PagedFile::use_small_pages);
        #[cfg(not(target_os = "linux"))]
        let _ = absent;
        PageReaders {
            shared,
            #[cfg(target_os = "linux")]
            _faults: fill_pages(&files, absent),
        }
    }

    /// The files whose pages are read and dropped.
    pub fn files(&self) -> &[PagedFile] {
        &self.shared.files
    }

    /// Drops pages before it returns.
    pub fn drop_now(&self, runs: Vec<PageRun>) {
        self.shared.carry_out(&TakenRuns { work: PageWork::Drop, needed: false, runs });
    }

    /// Hands over requests. If `waits`, returns when the needed pages and the pages that were
    /// announced before are read. On systems that get hints, it returns when their reads have
    /// begun.
    pub fn request(&self, requests: PageRequests, waits: bool) {
        let PageRequests { needed, mut announced, ahead, drops } = requests;
        if [&needed, &announced, &ahead, &drops].iter().all(|runs| runs.is_empty()) {
            return;
        }
        let waits = waits && !(needed.is_empty() && announced.is_empty());
        announced.sort_unstable_by_key(|run| (run.file, run.start));
        let mut open = self.shared.lock();
        open.needed.extend(needed);
        open.need_now(&announced);
        open.ahead.extend(ahead);
        open.drops.extend(drops);
        self.shared.work.notify_all();
        // The caller helps.
        while waits && let Some(taken) = open.take(true) {
            drop(open);
            self.shared.carry_out(&taken);
            open = self.shared.lock();
        }
        while waits && (open.busy > 0 || open.is_reading(&announced)) {
            open = self.shared.done.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Lets the program itself fill the pages of `files`, if the system allows it.
#[cfg(target_os = "linux")]
fn fill_pages(
    files: &Arc<Vec<PagedFile>>,
    absent: impl Fn(PageRun) -> Vec<PageRun> + Send + 'static,
) -> Option<FaultReader> {
    let filler = Arc::new(PageFiller::new()?);
    let faults = FaultReader::start(&filler, Arc::clone(files), absent)?;
    files.iter().for_each(|file| file.fill_pages(&filler));
    Some(faults)
}

impl Drop for PageReaders {
    fn drop(&mut self) {
        // The last owner may be one of the threads, so the drop does not wait for the threads.
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

/// Main loop of a thread.
fn work(shared: &SharedRequests) {
    let mut open = shared.lock();
    while !open.closed {
        match open.take(false) {
            Some(taken) => {
                drop(open);
                shared.carry_out(&taken);
                open = shared.lock();
            }
            None => open = shared.work.wait(open).unwrap_or_else(PoisonError::into_inner),
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
        let readers = PageReaders::new(Vec::new(), |_| Vec::new());
        for at in 0..1000 {
            let needed = || PageRequests { needed: vec![run(at * 4096)], ..PageRequests::default() };
            readers.request(needed(), false);
            readers.request(needed(), true);
            let open = readers.shared.lock();
            assert!(open.needed.is_empty() && open.busy == 0, "{open:?}");
        }
    }

    #[test]
    fn announced_pages_become_needed_and_others_stay() {
        let pages = |start: usize, end: usize| PageRun { file: 0, start: start * 4096, end: end * 4096 };
        let other = PageRun { file: 1, ..pages(0, 99) };
        let mut open = OpenRequests { ahead: [pages(0, 10), other, pages(20, 30)].into(), ..OpenRequests::default() };
        open.need_now(&[pages(2, 4), pages(6, 8), pages(40, 50)]);
        assert_eq!(open.needed, [pages(2, 8)]);
        assert_eq!(open.ahead, [pages(0, 2), pages(8, 10), other, pages(20, 30)]);
    }

    #[test]
    fn pages_are_not_dropped_while_a_thread_reads_them() {
        let mut open =
            OpenRequests { needed: [run(0)].into(), drops: [run(0), run(8192)].into(), ..Default::default() };
        let reads = open.take(true).unwrap();
        assert_eq!(open.take(false).unwrap().runs, [run(8192)]);
        assert!(open.take(false).is_none() && open.is_reading(&reads.runs));
        open.reading.clear();
        assert_eq!(open.take(false).unwrap().runs, [run(0)]);
    }
}
