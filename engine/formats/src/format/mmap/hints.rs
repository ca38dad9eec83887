//! Hints to the system about the pages of a map: which are needed soon, and which may go. They
//! change when a page is in memory, never what it contains.

#![allow(unsafe_code)]

use std::fs::File;

/// Most bytes that one hint asks for. Systems cut longer requests to a disk's largest read.
const LONGEST_HINT: usize = 128 << 10;

/// A hint about a range of pages.
#[derive(Clone, Copy)]
enum PageHint {
    /// The process reads the pages soon.
    WillNeed,
    /// The system may drop the pages.
    DontNeed,
    /// The system reads single pages instead of huge ones.
    #[cfg(target_os = "linux")]
    NoHugePage,
}

/// Bytes of a page of this machine.
pub(crate) fn page_bytes() -> usize {
    #[cfg(unix)]
    // SAFETY: the call has no preconditions.
    let bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok();
    #[cfg(not(unix))]
    let bytes = None;
    bytes.filter(|bytes: &usize| bytes.is_power_of_two()).unwrap_or(4096)
}

/// Bytes of the pages of `map`, a whole map, that are in memory. `None` if the system does not
/// tell.
pub(crate) fn resident_bytes(map: &[u8]) -> Option<u64> {
    #[cfg(unix)]
    {
        let page = page_bytes();
        let mut states = vec![0u8; map.len().div_ceil(page)];
        // SAFETY: the map begins at a page, and the call writes one byte for each of its pages.
        let done = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), states.as_mut_ptr().cast()) };
        let resident = states.iter().filter(|state| **state & 1 == 1).count() * page;
        (done == 0).then_some(resident as u64)
    }
    #[cfg(not(unix))]
    {
        let _ = map;
        None
    }
}

/// Starts reading `pages`, a part of a map that begins at a page. Returns before the reads end.
pub(crate) fn read_soon(pages: &[u8]) {
    pages.chunks(LONGEST_HINT).for_each(|part| advise(part, PageHint::WillNeed));
}

/// Reads `pages` in small pages from now on, so that reading one row does not read two megabytes.
pub(crate) fn read_small_pages(pages: &[u8]) {
    #[cfg(target_os = "linux")]
    advise(pages, PageHint::NoHugePage);
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
}

/// Frees the memory of `pages`, whole pages of a map of `file` at `offset`. The next access reads
/// them again.
pub(crate) fn forget(pages: &[u8], file: &File, offset: u64) {
    advise(pages, PageHint::DontNeed);
    // Without this call, Linux keeps the pages in its cache.
    #[cfg(target_os = "linux")]
    drop_cached(file, offset, pages.len());
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset);
}

/// Drops `len` bytes of `file` from the system's cache, except pages that a program has mapped.
#[cfg(target_os = "linux")]
pub(crate) fn drop_cached(file: &File, offset: u64, len: usize) {
    if let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) {
        advise_file(file, offset, len, libc::POSIX_FADV_DONTNEED);
    }
}

/// Reads no more of `file` than is asked for.
#[cfg(target_os = "linux")]
pub(crate) fn read_exactly(file: &File) {
    advise_file(file, 0, 0, libc::POSIX_FADV_RANDOM);
}

#[cfg(target_os = "linux")]
fn advise_file(file: &File, offset: libc::off_t, len: libc::off_t, advice: libc::c_int) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open, and the call only changes what the system caches.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, advice) };
}

#[cfg(unix)]
fn advise(pages: &[u8], hint: PageHint) {
    let advice = match hint {
        PageHint::WillNeed => libc::MADV_WILLNEED,
        PageHint::DontNeed => libc::MADV_DONTNEED,
        #[cfg(target_os = "linux")]
        PageHint::NoHugePage => libc::MADV_NOHUGEPAGE,
    };
    // SAFETY: the range is a borrowed part of a shared map of a file, or of the zero pages that
    // replaced a lost file. For both, each of these hints leaves the contents as they are: a
    // dropped page is read again from the file, or is zero again. A failure changes nothing.
    unsafe { libc::madvise(pages.as_ptr().cast_mut().cast(), pages.len(), advice) };
}

/// Gives no hints on other systems, whose files have no pager.
#[cfg(not(unix))]
fn advise(_: &[u8], _: PageHint) {}
