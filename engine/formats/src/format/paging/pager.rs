//! [`Pager`]: keeps the weights of mapped files within a budget of RAM.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use super::{
    page_readers::PageReaders,
    paged_file::PagedFile,
    pager_state::{Announced, FileBase, PagerState},
    tensor_pages::PageRun,
};
use crate::format::{Bytes, Matrix, mmap::hints};

/// A tensor whose pages a [`Pager`] manages.
#[derive(Debug, Clone)]
pub struct PagedTensor {
    /// The matrix.
    pub data: Bytes,
    /// How passes read it.
    pub access: PagedAccess,
}

/// How passes read a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagedAccess {
    /// Whole, or the rows of some neurons.
    Matrix,
    /// Some experts of each layer, whole or the rows of some neurons. Tensors of experts that touch
    /// each other are one tensor to the pager.
    Experts,
    /// One row per token.
    Table,
}

/// Rows of a matrix that are about to be read.
#[derive(Debug, Clone, Copy)]
pub struct ReadRows<'r> {
    /// The matrix.
    pub weight: &'r Matrix,
    /// Row indices; `None` for all rows.
    pub rows: Option<&'r [u32]>,
}

/// What a [`Pager`] holds and has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagerFigures {
    /// Bytes of all weights in the files.
    pub weights: u64,
    /// Most bytes of weights in memory.
    pub budget: u64,
    /// Bytes of weights in memory.
    pub present: u64,
    /// Bytes read from disk.
    pub read: u64,
    /// Read requests for these bytes, each for consecutive pages.
    pub requests: u64,
}

/// Decides which pages of mapped files are in memory. Every read of their weights is announced to
/// it. It belongs to the files, which lead to it ([`Matrix::pager`]).
pub struct Pager {
    state: Arc<Mutex<PagerState>>,
    readers: PageReaders,
    budget: u64,
    /// Bytes of each file.
    lengths: Vec<usize>,
    /// True if others may have read pages that the state counts as absent.
    is_stale: AtomicBool,
    /// Passes so far.
    passes: AtomicU32,
}

/// Held while a pager is attached, because a file has one.
static ATTACHING: Mutex<()> = Mutex::new(());
/// After this many passes, pages that the state counts as absent are dropped: a late read can bring
/// back a page that was dropped.
const PASSES_PER_CHECK: u32 = 256;

impl Pager {
    /// Keeps at most `budget` bytes of `tensors` in memory. Tensors in RAM are left out, and a
    /// tensor may be listed twice. Does nothing if all of them fit, or if a file already has a
    /// pager.
    pub fn attach(tensors: &[PagedTensor], budget: u64) -> Option<Arc<Pager>> {
        let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files: Vec<_> = Vec::new();
        for tensor in tensors {
            let Some(file) = tensor.data.file() else { continue };
            if !files.iter().any(|(known, _)| Arc::ptr_eq(*known, file)) {
                files.push((file, tensor.data.owner()));
            }
        }
        let mut bases = Vec::new();
        for (_, map) in &files {
            let bytes: &[u8] = (***map).as_ref();
            bases.push(FileBase { address: bytes.as_ptr().addr(), len: bytes.len() });
        }
        let state = PagerState::new(tensors, &bases, budget, hints::page_bytes());
        if state.all_bytes() <= budget || files.iter().any(|(file, _)| file.pager().is_some()) {
            return None;
        }
        let paged = files.iter().map(|(file, map)| PagedFile::new(map, file));
        let state = Arc::new(Mutex::new(state));
        let of = Arc::clone(&state);
        let absent = move |run| of.lock().unwrap_or_else(PoisonError::into_inner).absent(run);
        let pager = Arc::new(Pager {
            state,
            readers: PageReaders::new(paged.collect(), absent),
            budget,
            lengths: bases.iter().map(|file| file.len).collect(),
            is_stale: AtomicBool::new(true),
            passes: AtomicU32::new(0),
        });
        files.iter().for_each(|(file, _)| file.set_pager(&pager));
        Some(pager)
    }

    /// Begins a pass of one token (`single`) or several.
    pub fn begin_pass(&self, single: bool) {
        let is_checked = self.passes.fetch_add(1, Relaxed) % PASSES_PER_CHECK == PASSES_PER_CHECK - 1;
        let is_stale = self.is_stale.swap(false, Relaxed) || is_checked;
        let absent = self.locked(|state| {
            state.begin_pass(single);
            let files = self.lengths.iter().enumerate().filter(|_| is_stale);
            files.flat_map(|(file, len)| state.absent(PageRun { file, start: 0, end: *len })).collect::<Vec<_>>()
        });
        if is_stale {
            self.drop_others(absent);
        }
    }

    /// Drops the pages `absent`, which the state counts as absent, if too many bytes are in memory.
    fn drop_others(&self, absent: Vec<PageRun>) {
        let is_full = || self.resident_bytes().is_none_or(|bytes| bytes > self.budget + self.budget / 16);
        if !is_full() {
            return;
        }
        self.readers.drop_now(absent);
        if is_full() {
            // Linux may cache a file in blocks of megabytes, and drops no part of a block.
            let whole = |(file, len): (usize, &usize)| PageRun { file, start: 0, end: *len };
            self.readers.drop_now(self.lengths.iter().enumerate().map(whole).collect());
            self.locked(PagerState::doubt);
        }
    }

    /// Notes that weights were read without an announcement, for example to copy them to a GPU.
    /// Those that are not kept are dropped when the next pass begins.
    pub fn note_other_reads(&self) {
        self.is_stale.store(true, Relaxed);
    }

    /// Announces that a product reads these rows now. Returns when those that were absent are read,
    /// or when the system was asked for them.
    pub fn read<'r>(&self, reads: impl Iterator<Item = ReadRows<'r>>) {
        let requests = self.locked(|state| state.announce(reads, Announced::Now));
        self.readers.request(requests, true);
    }

    /// Announces that these rows will probably be read soon.
    pub fn read_soon<'r>(&self, reads: impl Iterator<Item = ReadRows<'r>>) {
        let requests = self.locked(|state| state.announce(reads, Announced::Soon));
        self.readers.request(requests, false);
    }

    /// Bytes of the files that the system holds in memory now, as it reports them. They include
    /// pages that others have read. `None` on systems without this report.
    pub fn resident_bytes(&self) -> Option<u64> {
        let files = self.readers.files().iter().filter_map(PagedFile::map);
        files.map(|map| hints::resident_bytes((*map).as_ref())).sum()
    }

    /// True if the program fills the pages itself, past the system's cache.
    #[cfg(all(test, target_os = "linux"))]
    fn fills_pages(&self) -> bool {
        self.readers.files().iter().all(PagedFile::is_filled)
    }

    /// Calls `which` with a question: are these weights in memory? Meanwhile, no weights come or
    /// go.
    pub fn present<T>(&self, which: impl FnOnce(&dyn Fn(&[u8]) -> bool) -> T) -> T {
        self.locked(|state| which(&|data| state.is_present(data)))
    }

    /// Current figures.
    pub fn figures(&self) -> PagerFigures {
        self.locked(|state| PagerFigures {
            weights: state.all_bytes(),
            budget: self.budget,
            present: state.present(),
            read: state.read(),
            requests: state.requests(),
        })
    }

    fn locked<T>(&self, work: impl FnOnce(&mut PagerState) -> T) -> T {
        // A panic within leaves counts that are slightly off.
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Pager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pager").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{env, fs, hint::black_box, io, os::unix::fs::FileExt, thread, time::Duration};

    use super::*;
    use crate::{
        format::{
            ReadMode,
            mmap::{self, filled::PageFiller},
            paging::fault_reader::MOST_LEFT,
        },
        quant::TensorType,
    };

    const MATRICES: usize = 8;
    const BYTES: usize = 1 << 20;
    /// Floats of a row.
    const COLS: usize = 1024;

    /// Announces a matrix, the one at `at` in `file`, and reads it. An access to the map could make
    /// the system read pages around it, as many as its settings say.
    fn multiply(pager: &Pager, weight: &Matrix, file: &fs::File, at: usize) -> io::Result<()> {
        pager.read(std::iter::once(ReadRows { weight, rows: None }));
        file.read_exact_at(&mut vec![0; BYTES], (at * BYTES) as u64)
    }

    /// The system itself says which pages are in memory.
    #[test]
    fn only_the_budget_stays_in_memory() {
        // The folder of this program is on a disk. One for temporary files may be in RAM.
        let program = env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, vec![7; MATRICES * BYTES]).unwrap();
        fs::File::open(&path).and_then(|file| file.sync_all()).unwrap();
        let all = mmap::load(&path, ReadMode::Map).unwrap();
        let matrix = |at: usize| {
            let data = all.slice(at * BYTES..(at + 1) * BYTES).unwrap();
            Matrix::new(TensorType::F32, BYTES / COLS / 4, COLS, data).unwrap()
        };
        let matrices: Vec<Matrix> = (0..MATRICES).map(matrix).collect();
        let tensor = |weight: &Matrix| PagedTensor { data: weight.bytes().clone(), access: PagedAccess::Matrix };
        let tensors: Vec<PagedTensor> = matrices.iter().map(tensor).collect();
        let budget = (MATRICES * BYTES / 2) as u64;
        let pager = Pager::attach(&tensors, budget).unwrap();
        let read_all = || all.chunks(4096).for_each(|page| _ = black_box(page[0]));
        read_all();
        assert!(pager.resident_bytes().unwrap() > budget + budget / 2);
        let settled = |what: &str| {
            let most = budget + budget / 16;
            // Threads drop the pages.
            let left = || {
                (0..500).any(|_| {
                    pager.resident_bytes().unwrap() <= most || {
                        thread::sleep(Duration::from_millis(10));
                        false
                    }
                })
            };
            assert!(left(), "{what}: {:?} of {most} bytes, {:?}", pager.resident_bytes(), pager.figures());
            assert!(pager.resident_bytes().unwrap() > budget / 2, "{what}: {:?}", pager.resident_bytes());
        };
        let file = fs::File::open(&path).unwrap();
        hints::read_exactly(&file);
        for _ in 0..12 {
            pager.begin_pass(true);
            for (at, weight) in matrices.iter().enumerate() {
                multiply(&pager, weight, &file, at).unwrap();
            }
        }
        settled("after passes");
        // A copy to a GPU reads everything without an announcement.
        read_all();
        assert!(pager.resident_bytes().unwrap() > budget + budget / 2);
        pager.note_other_reads();
        pager.begin_pass(true);
        settled("after other reads");
        assert!(Pager::attach(&tensors, budget).is_none(), "a file has one pager");
    }

    /// Threads read everything in disorder, without an announcement, while pages are dropped.
    #[test]
    fn pages_that_come_and_go_have_the_bytes_of_the_file() {
        let folder = tempfile::tempdir_in(env::current_exe().unwrap().parent().unwrap()).unwrap();
        let path = folder.path().join("weights");
        // The file ends within a page.
        let word = |at: usize| (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        let contents: Vec<u8> = (0..MATRICES * BYTES / 8 + 100).flat_map(word).collect();
        fs::write(&path, &contents).unwrap();
        let all = mmap::load(&path, ReadMode::Map).unwrap();
        let matrix =
            Matrix::new(TensorType::F32, MATRICES * BYTES / COLS / 4, COLS, all.slice(0..MATRICES * BYTES).unwrap());
        let matrix = matrix.unwrap();
        let tensor = PagedTensor { data: matrix.bytes().clone(), access: PagedAccess::Matrix };
        let pager = Pager::attach(&[tensor], BYTES as u64).unwrap();
        thread::scope(|scope| {
            for reader in 1..4 {
                let (all, contents) = (&all, &contents);
                scope.spawn(move || {
                    let pages = contents.len().div_ceil(4096);
                    for step in 0..4 * pages {
                        let page = step * (reader * 7919) % pages * 4096;
                        let part = page..contents.len().min(page + 4096);
                        assert!(all[part.clone()] == contents[part], "page at {page}");
                    }
                });
            }
            for pass in 0..40u32 {
                pager.begin_pass(true);
                let rows: Vec<u32> = (0..matrix.rows() as u32).filter(|row| (row * 31 + pass) % 9 == 0).collect();
                pager.read(std::iter::once(ReadRows { weight: &matrix, rows: Some(&rows) }));
                pager.note_other_reads();
            }
        });
        pager.begin_pass(true);
        pager.read(std::iter::once(ReadRows { weight: &matrix, rows: None }));
        assert!(all[..] == contents);
        assert_eq!(pager.fills_pages(), PageFiller::new().is_some());
        assert_eq!(all.file().unwrap().check().map_err(|error| error.to_string()), Ok(()));
    }

    #[test]
    fn file_that_ends_early_is_lost() {
        let folder = tempfile::tempdir_in(env::current_exe().unwrap().parent().unwrap()).unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, vec![7; MATRICES * BYTES]).unwrap();
        let all = mmap::load(&path, ReadMode::Map).unwrap();
        let matrix = Matrix::new(TensorType::F32, MATRICES * BYTES / COLS / 4, COLS, all.clone()).unwrap();
        let tensor = PagedTensor { data: all.clone(), access: PagedAccess::Matrix };
        let pager = Pager::attach(&[tensor], BYTES as u64).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(BYTES as u64).unwrap();
        pager.read(std::iter::once(ReadRows { weight: &matrix, rows: None }));
        // A system that maps its cache reads the grown file, without an error.
        file.set_len((MATRICES * BYTES) as u64).unwrap();
        black_box(all.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        let check = all.file().unwrap().check();
        assert_eq!(check.is_err(), pager.fills_pages(), "{check:?}");
        assert_eq!(pager.fills_pages(), PageFiller::new().is_some());
    }

    #[test]
    fn reads_without_announcements_do_not_fill_the_memory() {
        let folder = tempfile::tempdir_in(env::current_exe().unwrap().parent().unwrap()).unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, vec![7; 64 * BYTES]).unwrap();
        fs::File::open(&path).and_then(|file| file.sync_all()).unwrap();
        let all = mmap::load(&path, ReadMode::Map).unwrap();
        let tensor = PagedTensor { data: all.clone(), access: PagedAccess::Matrix };
        let pager = Pager::attach(&[tensor], BYTES as u64).unwrap();
        let (filled, state) = (pager.fills_pages(), Arc::downgrade(&pager.state));
        assert_eq!(all.chunks(4096).map(|page| u64::from(page[5])).sum::<u64>(), 7 * 64 * 256);
        let left = pager.resident_bytes().unwrap() as usize;
        assert!(!filled || left <= MOST_LEFT + 2 * BYTES, "{left} bytes are in memory");
        drop((pager, all));
        // The thread that reads the pages knows the state.
        let ended = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(20));
            state.strong_count() == 0
        });
        assert!(ended, "the threads of the pager end with it");
    }
}
