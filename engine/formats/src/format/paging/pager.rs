//! [`Pager`]: keeps the weights of mapped files within a budget of RAM.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::{
    page_readers::{PageReaders, PagedFile},
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
    state: Mutex<PagerState>,
    readers: PageReaders,
    budget: u64,
    /// Bytes of each file.
    lengths: Vec<usize>,
    /// True if others may have read pages that the state counts as absent.
    is_stale: AtomicBool,
}

impl Pager {
    /// Keeps at most `budget` bytes of `tensors` in memory. Tensors in RAM are left out, and a
    /// tensor may be listed twice. Does nothing if all of them fit, or if a file already has a
    /// pager.
    pub fn attach(tensors: &[PagedTensor], budget: u64) -> Option<Arc<Pager>> {
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
        files.iter().for_each(|(_, map)| hints::read_small_pages((***map).as_ref()));
        let paged = files.iter().map(|(file, map)| PagedFile { map: Arc::downgrade(map), file: Arc::downgrade(file) });
        let pager = Arc::new(Pager {
            state: Mutex::new(state),
            readers: PageReaders::new(paged.collect()),
            budget,
            lengths: bases.iter().map(|file| file.len).collect(),
            is_stale: AtomicBool::new(true),
        });
        files.iter().for_each(|(file, _)| file.set_pager(&pager));
        Some(pager)
    }

    /// Begins a pass of one token (`single`) or several.
    pub fn begin_pass(&self, single: bool) {
        let is_stale = self.is_stale.swap(false, Relaxed);
        let absent = self.locked(|state| {
            state.begin_pass(single);
            let files = self.lengths.iter().enumerate().filter(|_| is_stale);
            files.flat_map(|(file, len)| state.absent(file, *len)).collect::<Vec<_>>()
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

    /// Announces that a product reads these rows now. Returns when the disk was asked for those
    /// that are absent.
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
        let files = self.readers.files().iter().filter_map(|file| file.map.upgrade());
        files.map(|map| hints::resident_bytes((*map).as_ref())).sum()
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
        format::{ReadMode, mmap},
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
}
