//! [`PagedFile`]: a mapped file whose pages are read and dropped.

use std::sync::{Arc, Weak};

#[cfg(target_os = "linux")]
use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::tensor_pages::PageRun;
use crate::format::{MappedFile, bytes::BytesOwner, mmap::hints};
#[cfg(target_os = "linux")]
use crate::format::{UncachedFile, mmap::filled::PageFiller};

/// A mapped file. This does not keep the map alive.
///
/// On Linux, the program itself reads the file into the map's pages if it may
/// ([`PagedFile::fill_pages`]). On other systems, the system maps its cache, and gets hints.
#[derive(Debug)]
pub(super) struct PagedFile {
    map: Weak<dyn AsRef<[u8]> + Send + Sync>,
    file: Weak<MappedFile>,
    #[cfg(target_os = "linux")]
    filled: OnceLock<FilledFile>,
}

/// The file behind a map whose pages the program fills.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct FilledFile {
    filler: Arc<PageFiller>,
    disk: UncachedFile,
    /// False until the filler has taken over the map.
    is_active: AtomicBool,
}

impl PagedFile {
    /// Describes `file`, which `map` maps.
    pub fn new(map: &BytesOwner, file: &Arc<MappedFile>) -> Self {
        PagedFile {
            map: Arc::downgrade(map),
            file: Arc::downgrade(file),
            #[cfg(target_os = "linux")]
            filled: OnceLock::new(),
        }
    }

    /// The map, while it exists.
    pub fn map(&self) -> Option<BytesOwner> {
        self.map.upgrade()
    }

    /// Lets `filler` fill the pages of the map. Without success, the map stays as it is.
    #[cfg(target_os = "linux")]
    pub fn fill_pages(&self, filler: &Arc<PageFiller>) {
        let (Some(map), Some(file)) = (self.map.upgrade(), self.file.upgrade()) else { return };
        let Some(disk) = file.uncached().ok().filter(UncachedFile::is_direct) else { return };
        let filled = FilledFile { filler: Arc::clone(filler), disk, is_active: AtomicBool::new(false) };
        // Faults are handled from the moment at which the filler has the map.
        let filled = self.filled.get_or_init(|| filled);
        match filler.take_over((*map).as_ref()) {
            Ok(()) => {
                filled.is_active.store(true, Ordering::Release);
                file.forget_cached();
            }
            Err(error) => tracing::warn!("the system's cache holds the weights: {error}"),
        }
    }

    /// True if the program fills the pages.
    #[cfg(all(test, target_os = "linux"))]
    pub fn is_filled(&self) -> bool {
        self.active().is_some()
    }

    #[cfg(target_os = "linux")]
    fn active(&self) -> Option<&FilledFile> {
        self.filled.get().filter(|filled| filled.is_active.load(Ordering::Acquire))
    }

    /// Uses small pages, so that reading one row does not read two megabytes.
    pub fn use_small_pages(&self) {
        if let Some(map) = self.map.upgrade() {
            hints::read_small_pages((*map).as_ref());
        }
    }

    /// Reads the pages of `run` with the help of `buffer`, or asks the system to read them soon.
    pub fn read(&self, run: &PageRun, buffer: &mut [u8]) {
        // The map may be gone, and its addresses may belong to others.
        let (Some(map), Some(file)) = (self.map.upgrade(), self.file.upgrade()) else { return };
        let bytes: &[u8] = (*map).as_ref();
        #[cfg(target_os = "linux")]
        if let Some(filled) = self.active() {
            filled.read(run, bytes, &file, buffer);
            return;
        }
        let _ = (file, buffer);
        if let Some(pages) = bytes.get(run.start..run.end.min(bytes.len())) {
            hints::read_soon(pages);
        }
    }

    /// Drops the pages of `runs`, all of this file.
    pub fn drop_pages(&self, runs: &[PageRun]) {
        let (Some(map), Some(file)) = (self.map.upgrade(), self.file.upgrade()) else { return };
        let bytes: &[u8] = (*map).as_ref();
        let pages = runs.iter().filter_map(|run| bytes.get(run.start..run.end.min(bytes.len())));
        #[cfg(target_os = "linux")]
        if let Some(filled) = self.active() {
            filled.filler.drop_pages(&pages.collect::<Vec<_>>());
            return;
        }
        pages.zip(runs).for_each(|(pages, run)| file.forget(pages, run.start as u64));
    }

    /// Reads the `most` bytes around the page at `address`, for a thread that waits for it. Returns
    /// the pages that were read, as a run of the first file, and the address of their end. `None`
    /// if the map does not contain the page.
    #[cfg(target_os = "linux")]
    pub fn read_at(&self, address: usize, most: usize, buffer: &mut [u8]) -> Option<(PageRun, usize)> {
        let (map, file) = (self.map.upgrade()?, self.file.upgrade()?);
        let bytes: &[u8] = (*map).as_ref();
        let base = bytes.as_ptr().addr();
        let at = address.checked_sub(base)?;
        let end = bytes.len().next_multiple_of(hints::page_bytes());
        let start = at / most * most;
        let run = PageRun { file: 0, start, end: end.min(start + most) };
        (at < end).then_some(())?;
        self.filled.get()?.read(&run, bytes, &file, buffer);
        Some((run, base + run.end))
    }
}

#[cfg(target_os = "linux")]
impl FilledFile {
    /// Reads the pages of `run` into `map`. If the disk fails, they become zeros, and `file` is
    /// lost.
    fn read(&self, run: &PageRun, map: &[u8], file: &MappedFile, buffer: &mut [u8]) {
        let base = map.as_ptr().addr();
        let mut at = run.start;
        while at < run.end {
            let pages = buffer.len().min(run.end - at);
            let pages = &mut buffer[..pages];
            match self.disk.read(pages, at as u64) {
                Ok(()) => self.filler.fill(base + at, pages),
                Err(error) => {
                    if file.mark_lost() {
                        tracing::warn!("{error}");
                    }
                    self.filler.fill_with_zeros(base + at, pages.len());
                }
            }
            at += pages.len();
        }
    }
}
