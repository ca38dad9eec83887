//! [`Pager`]: keeps the weights of mapped files within a budget of RAM.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    page_readers::{PageReaders, PagedFile},
    pager_state::{Announced, FileBase, PagerState},
};
use crate::format::{Bytes, Matrix, mmap::hints};

/// A tensor whose pages a [`Pager`] manages.
#[derive(Debug, Clone, Copy)]
pub struct PagedTensor<'m> {
    /// The matrix, or the matrices of all experts.
    pub data: &'m Bytes,
    /// True for the matrices of experts, of which a token reads only some.
    pub chosen: bool,
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
    /// Most bytes of weights in memory.
    pub budget: u64,
    /// Bytes of weights in memory.
    pub present: u64,
    /// Bytes read from disk.
    pub read: u64,
}

/// Decides which pages of mapped files are in memory. Every read of their weights is announced to
/// it. It belongs to the files, which lead to it ([`Matrix::pager`]).
pub struct Pager {
    state: Mutex<PagerState>,
    readers: PageReaders,
    budget: u64,
}

impl Pager {
    /// Keeps at most `budget` bytes of `tensors` in memory. Tensors in RAM are left out. Does
    /// nothing if all of them fit, or if a file already has a pager.
    pub fn attach(tensors: &[PagedTensor<'_>], budget: u64) -> Option<Arc<Pager>> {
        let mut files: Vec<_> = Vec::new();
        let mut mapped = Vec::new();
        for tensor in tensors {
            let Some(file) = tensor.data.file() else { continue };
            mapped.push(*tensor);
            if !files.iter().any(|(known, _)| Arc::ptr_eq(*known, file)) {
                files.push((file, tensor.data.owner()));
            }
        }
        let all: u64 = mapped.iter().map(|of| of.data.len() as u64).sum();
        if all <= budget || files.iter().any(|(file, _)| file.pager().is_some()) {
            return None;
        }
        let mut bases = Vec::new();
        for (file, map) in &files {
            let bytes: &[u8] = (***map).as_ref();
            bases.push(FileBase { address: bytes.as_ptr().addr() });
            hints::read_small_pages(bytes);
            // Pages that were read before are not counted.
            file.forget(bytes, 0);
        }
        let state = Mutex::new(PagerState::new(&mapped, &bases, budget, hints::page_bytes()));
        let paged = files.iter().map(|(file, map)| PagedFile { map: Arc::downgrade(map), file: Arc::downgrade(file) });
        let pager = Arc::new(Pager { state, readers: PageReaders::new(paged.collect()), budget });
        files.iter().for_each(|(file, _)| file.set_pager(&pager));
        Some(pager)
    }

    /// Begins a pass of one token (`single`) or several.
    pub fn begin_pass(&self, single: bool) {
        self.locked(|state| state.begin_pass(single));
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

    /// Current figures.
    pub fn figures(&self) -> PagerFigures {
        self.locked(|state| PagerFigures { budget: self.budget, present: state.present(), read: state.read() })
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
