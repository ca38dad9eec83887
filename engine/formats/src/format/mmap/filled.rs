//! [`PageFiller`]: maps of files whose pages this program reads and drops itself. Linux reports
//! each access to an absent page, and the access waits until the page is filled.
//!
//! The system's own cache takes more processor time for each page, and it needs two system calls to
//! drop each run of pages.

#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fs::File,
    io::{self, PipeReader, Read},
    mem::size_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use super::hints::page_bytes;

/// Most ranges of one call that drops pages. The system accepts no more.
const MOST_RANGES: usize = 1024;
/// Most messages that one call reads.
const MOST_MESSAGES: usize = 16;
/// Bytes of a message.
const MESSAGE_BYTES: usize = 32;
/// Most attempts to fill a page while maps change.
const MOST_ATTEMPTS: usize = 16;
/// Version of the system's interface.
const API: u64 = 0xAA;
/// The file descriptor reports faults of programs, not of the system. Any user may open it.
const USER_FAULTS_ONLY: libc::c_int = 1;
/// A registered range stays registered if it moves.
const MOVES: u64 = 1 << 2;
/// Faults of pages that are absent are reported.
const ABSENT_PAGES: u64 = 1;
/// Kind of a message about a fault.
const FAULT: u8 = 0x12;

/// Writes and reads an argument.
const READ_WRITE: u64 = 3;
/// Reads an argument. The names are from the view of the system.
const READ: u64 = 2;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct AddressRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterRequest {
    range: AddressRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyRequest {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// Bytes that were copied, or the negative number of an error.
    copied: i64,
}

#[repr(C)]
struct ZeroRequest {
    range: AddressRange,
    mode: u64,
    /// Bytes that were filled, or the negative number of an error.
    filled: i64,
}

/// A request of the interface: its number, and how the system uses its argument.
trait FillRequest {
    const NUMBER: u64;
    const USE: u64 = READ_WRITE;
}

impl FillRequest for ApiRequest {
    const NUMBER: u64 = 0x3F;
}

impl FillRequest for RegisterRequest {
    const NUMBER: u64 = 0x00;
}

impl FillRequest for AddressRange {
    /// Wakes the threads that wait for pages of the range.
    const NUMBER: u64 = 0x02;
    const USE: u64 = READ;
}

impl FillRequest for CopyRequest {
    const NUMBER: u64 = 0x03;
}

impl FillRequest for ZeroRequest {
    const NUMBER: u64 = 0x04;
}

/// Fills absent pages of maps, and reports the addresses for which threads wait.
#[derive(Debug)]
pub(crate) struct PageFiller {
    faults: File,
    /// This process. `None` if the system has no such descriptors.
    process: Option<OwnedFd>,
}

impl PageFiller {
    /// Asks the system to report faults. `None` if it does not, or if this user may not ask.
    pub fn new() -> Option<Self> {
        // Only an administrator may see the faults of system calls.
        let open = |flags: libc::c_int| {
            // SAFETY: the call takes only flags.
            let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) };
            owned(opened)
        };
        let faults = File::from(open(0).or_else(|| open(USER_FAULTS_ONLY))?);
        // SAFETY: the call takes only a number and flags.
        let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) });
        let new = PageFiller { faults, process };
        new.request(&mut ApiRequest { api: API, features: MOVES, ioctls: 0 }).ok()?;
        Some(new)
    }

    /// Replaces `map`, a whole map of a file, by absent pages of the same addresses. From then on,
    /// a thread that accesses a page waits until the page is filled, so another thread must read
    /// the faults ([`PageFiller::next_faults`]) already.
    ///
    /// # Errors
    /// Errors of the system. The map is then as before, unless the system itself lacks memory.
    pub fn take_over(&self, map: &[u8]) -> io::Result<()> {
        let len = map.len().next_multiple_of(page_bytes());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        // SAFETY: the system chooses the address of new pages.
        let pages = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, flags, -1, 0) };
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Rows are read and dropped page by page. A dump of the program contains no weights.
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: nothing else knows these pages, and the advice does not change their bytes.
            unsafe { libc::madvise(pages, len, advice) };
        }
        let range = AddressRange { start: pages as u64, len: len as u64 };
        let registered = self.request(&mut RegisterRequest { range, mode: ABSENT_PAGES, ioctls: 0 });
        let move_flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let to = map.as_ptr().cast_mut().cast::<c_void>();
        let moved = registered.and_then(|()| {
            // SAFETY: both ranges are whole maps of ours with the same length. The map is readable
            // before and after the call. A thread that reads it meanwhile waits in the system.
            let moved = unsafe { libc::mremap(pages, len, len, move_flags, to) };
            if moved == to { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
        if moved.is_err() {
            // SAFETY: nothing else knows these pages.
            unsafe { libc::munmap(pages, len) };
        }
        moved
    }

    /// Fills the pages at `address`, which this filler has taken over, with `pages`. Pages that are
    /// filled already stay as they are.
    pub fn fill(&self, address: usize, pages: &[u8]) {
        self.fill_with(address, pages.len(), |at, len| {
            let from = pages[at..].as_ptr() as u64;
            let mut request = CopyRequest { to: (address + at) as u64, from, len: len as u64, mode: 0, copied: 0 };
            self.request(&mut request).map_err(|error| PartlyFilled { error, bytes: request.copied })
        });
    }

    /// Fills absent pages with zeros.
    pub fn fill_with_zeros(&self, address: usize, len: usize) {
        self.fill_with(address, len, |at, len| {
            let range = AddressRange { start: (address + at) as u64, len: len as u64 };
            let mut request = ZeroRequest { range, mode: 0, filled: 0 };
            self.request(&mut request).map_err(|error| PartlyFilled { error, bytes: request.filled })
        });
    }

    /// Calls `fill` for the parts of a range of `len` bytes that are absent, and wakes the threads
    /// that wait for others.
    fn fill_with(&self, address: usize, len: usize, fill: impl Fn(usize, usize) -> Result<(), PartlyFilled>) {
        let (mut at, mut attempts) = (0, 0);
        while at < len {
            let Err(PartlyFilled { error, bytes }) = fill(at, len - at) else { return };
            at += usize::try_from(bytes).unwrap_or(0);
            match error.raw_os_error() {
                Some(libc::EEXIST) if bytes <= 0 => {
                    let page = AddressRange { start: (address + at) as u64, len: page_bytes() as u64 };
                    let _ = self.request(&mut { page });
                    at += page_bytes();
                }
                Some(libc::EAGAIN | libc::EEXIST) if bytes > 0 => {}
                // A map moves. The move may wait for this thread to read the messages.
                Some(libc::EAGAIN) if attempts < MOST_ATTEMPTS => {
                    attempts += 1;
                    std::thread::yield_now();
                }
                // The map is gone, or no memory is left. The next access reports its fault again.
                _ => {
                    let rest = AddressRange { start: (address + at) as u64, len: (len - at) as u64 };
                    let _ = self.request(&mut { rest });
                    return;
                }
            }
        }
    }

    /// Frees the memory of `ranges`, whole pages of maps that this filler has taken over.
    pub fn drop_pages(&self, ranges: &[&[u8]]) {
        for part in ranges.chunks(MOST_RANGES) {
            let vectors: Vec<libc::iovec> = part
                .iter()
                .map(|range| libc::iovec { iov_base: range.as_ptr().cast_mut().cast(), iov_len: range.len() })
                .collect();
            let bytes: usize = part.iter().map(|range| range.len()).sum();
            let dropped = self.process.as_ref().is_some_and(|process| {
                let (process, n) = (process.as_raw_fd(), vectors.len());
                // SAFETY: the ranges are borrowed parts of our maps. A dropped page is absent until
                // it is filled again.
                let done = unsafe {
                    libc::syscall(libc::SYS_process_madvise, process, vectors.as_ptr(), n, libc::MADV_DONTNEED, 0)
                };
                usize::try_from(done).is_ok_and(|done| done == bytes)
            });
            if !dropped {
                // Systems before Linux 6.13 drop one range per call.
                for range in &vectors {
                    // SAFETY: as above.
                    unsafe { libc::madvise(range.iov_base, range.iov_len, libc::MADV_DONTNEED) };
                }
            }
        }
    }

    /// Waits until a thread accesses an absent page. Returns false once the other end of `closed`
    /// is closed.
    pub fn wait(&self, closed: &PipeReader) -> bool {
        let of = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut sources = [of(self.faults.as_raw_fd()), of(closed.as_raw_fd())];
        // SAFETY: the sources are valid for the call.
        let ready = unsafe { libc::poll(sources.as_mut_ptr(), sources.len() as libc::nfds_t, -1) };
        ready < 0 || sources[1].revents == 0
    }

    /// The addresses of accesses to absent pages, without a wait. The messages between them are
    /// read too, because a map that moves waits until its message was read.
    pub fn next_faults(&self) -> Vec<usize> {
        let mut messages = [0; MESSAGE_BYTES * MOST_MESSAGES];
        let read = (&self.faults).read(&mut messages).unwrap_or(0);
        let faults = messages[..read].chunks_exact(MESSAGE_BYTES).filter(|message| message[0] == FAULT);
        let addresses = faults.filter_map(|message| message[16..24].try_into().ok().map(u64::from_ne_bytes));
        addresses.map(|address| address as usize).collect()
    }

    fn request<R: FillRequest>(&self, argument: &mut R) -> io::Result<()> {
        let code = R::USE << 30 | (size_of::<R>() as u64) << 16 | API << 8 | R::NUMBER;
        // SAFETY: the argument has the layout that the system expects for this request. Copies read
        // a borrowed range, and fill only absent pages of registered ranges.
        let done = unsafe { libc::ioctl(self.faults.as_raw_fd(), code as _, ptr::from_mut(argument)) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A request that filled only some pages.
struct PartlyFilled {
    error: io::Error,
    /// Bytes that were filled, or the negative number of an error.
    bytes: i64,
}

/// The descriptor that a system call returned.
fn owned(descriptor: libc::c_long) -> Option<OwnedFd> {
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: the system has just opened the descriptor for this caller.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filler_exists_wherever_the_system_permits_it() {
        // SAFETY: the call takes only flags.
        let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_FAULTS_ONLY) };
        assert_eq!(PageFiller::new().is_some(), owned(opened).is_some());
    }
}
