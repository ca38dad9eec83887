//! [`FaultReader`]: a thread that reads pages for other threads, which access them without an
//! announcement, for example to copy them to a GPU.

use std::{collections::VecDeque, io::PipeWriter, sync::Arc, thread};

use super::{paged_file::PagedFile, tensor_pages::PageRun};
use crate::format::mmap::{anonymous, filled::PageFiller, hints};

/// Bytes that are read for the first access.
const LEAST_BYTES: usize = 16 << 10;
/// Most bytes that are read for an access, after accesses in order.
const MOST_BYTES: usize = 1 << 20;
/// Most bytes that such accesses leave in memory beside the budget.
pub(super) const MOST_LEFT: usize = 32 << 20;

/// The thread. It ends after this is dropped.
#[derive(Debug)]
pub(super) struct FaultReader {
    _open: PipeWriter,
}

impl FaultReader {
    /// Starts the thread, which reads the pages of `files` that `filler` finds absent, and drops
    /// them later if `absent` contains them: the pages of a run that the pager counts as absent.
    /// `None` if the system lacks memory, or starts no thread.
    pub fn start(
        filler: &Arc<PageFiller>,
        files: Arc<Vec<PagedFile>>,
        absent: impl Fn(PageRun) -> Vec<PageRun> + Send + 'static,
    ) -> Option<Self> {
        let (closed, _open) = std::io::pipe().ok()?;
        let mut buffer = anonymous(MOST_BYTES, "a buffer for weights").ok()?;
        let filler = Arc::clone(filler);
        let read = move || {
            let (mut order, mut left) = (FaultOrder::default(), LeftPages::default());
            while filler.wait(&closed) {
                for address in filler.next_faults() {
                    let most = order.bytes_at(address);
                    let read = files.iter().enumerate().find_map(|(number, file)| {
                        let (run, end) = file.read_at(address, most, &mut buffer)?;
                        Some((PageRun { file: number, ..run }, end))
                    });
                    order.end = read.map_or(0, |(_, end)| end);
                    for run in read.into_iter().flat_map(|(run, _)| left.push(run)) {
                        files[run.file].drop_pages(&absent(run));
                    }
                }
            }
        };
        thread::Builder::new().name("page-faults".to_owned()).spawn(read).ok()?;
        Some(FaultReader { _open })
    }
}

/// Pages that were read for an access, the oldest first.
#[derive(Debug, Default)]
struct LeftPages {
    runs: VecDeque<PageRun>,
    bytes: usize,
}

impl LeftPages {
    /// Adds a run. Returns the oldest ones, which exceed [`MOST_LEFT`].
    fn push(&mut self, run: PageRun) -> Vec<PageRun> {
        self.bytes += run.len();
        self.runs.push_back(run);
        let mut oldest = Vec::new();
        while self.bytes > MOST_LEFT
            && let Some(run) = self.runs.pop_front()
        {
            self.bytes -= run.len();
            oldest.push(run);
        }
        oldest
    }
}

/// Whether accesses are in the order of their addresses.
#[derive(Debug, Default)]
struct FaultOrder {
    /// The address after the pages that were read last.
    end: usize,
    /// Bytes that were read last.
    bytes: usize,
}

impl FaultOrder {
    /// The number of bytes to read for an access at `address`. It doubles if the access follows the
    /// pages that were read last.
    fn bytes_at(&mut self, address: usize) -> usize {
        let least = LEAST_BYTES.max(hints::page_bytes());
        let continues = address >= self.end && address - self.end < least;
        self.bytes = if continues { (self.bytes * 2).clamp(least, MOST_BYTES) } else { least };
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_in_order_read_more_at_a_time() {
        let mut order = FaultOrder::default();
        let mut read = |address: usize| {
            let bytes = order.bytes_at(address);
            order.end = (address / bytes + 1) * bytes;
            order.end
        };
        let start = 64 << 20;
        let mut at = start;
        for expected in [16, 32, 64, 128, 256, 512, 1024, 1024] {
            let end = read(at);
            assert!(end - at <= expected << 10 && end - at >= expected << 8, "{} of {expected} KiB", end - at);
            at = end;
        }
        assert_eq!(read(start), start + LEAST_BYTES.max(hints::page_bytes()));
    }
}
