//! Keeps the program alive if a mapped file is truncated, or its disk goes away.
//!
//! The next access to a missing page raises SIGBUS, in a kernel that cannot return an error. By
//! default SIGBUS ends the process. [`survive_lost_files`] installs a handler that looks for the
//! address in our maps. If one contains the address, the handler replaces the whole map by zero
//! pages and marks its [`MappedFile`] as lost. The instruction then continues. Results computed
//! from zeros are never used, because every pass ends with [`MappedFile::check`]. A signal handler
//! may do very little: it only reads atomics and makes system calls.

#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt,
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicPtr, AtomicUsize, Ordering},
    },
};

use memmap2::Mmap;

use crate::format::MappedFile;

/// Most maps that are watched at one time: more than the shards of several split models. Further
/// files are mapped without being watched.
const MOST_WATCHED: usize = 4096;
/// Exit status for an unreadable file.
const EXIT_STATUS: c_int = 2;

/// One map, for the handler. The slot is in use while `start` is not 0, and complete while `end` is
/// not 0.
struct MapSlot {
    start: AtomicUsize,
    end: AtomicUsize,
    file: AtomicPtr<MappedFile>,
}

static SLOTS: [MapSlot; MOST_WATCHED] =
    [const { MapSlot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), file: AtomicPtr::new(ptr::null_mut()) } };
        MOST_WATCHED];

/// A map and its file. The handler knows them as long as this exists.
pub(super) struct WatchedMap {
    map: Mmap,
    slot: Option<&'static MapSlot>,
    /// Keeps the file alive for the slot.
    _file: Arc<MappedFile>,
}

impl WatchedMap {
    pub fn new(map: Mmap, file: Arc<MappedFile>) -> Self {
        let start = map.as_ptr() as usize;
        let slot = SLOTS
            .iter()
            .find(|slot| slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if let Some(slot) = slot {
            slot.file.store(Arc::as_ptr(&file).cast_mut(), Ordering::Relaxed);
            slot.end.store(start.saturating_add(map.len()), Ordering::Release);
        }
        WatchedMap { map, slot, _file: file }
    }
}

impl AsRef<[u8]> for WatchedMap {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for WatchedMap {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.end.store(0, Ordering::Release);
            slot.start.store(0, Ordering::Release);
        }
    }
}

/// The signal action that was installed before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Turns the loss of a mapped file into an
/// [`Error::FileLost`](thermocline_base::error::Error::FileLost) instead of the end of the process.
/// Programs call it once at their start. The engine never calls it, because a library should not
/// change the process's signals. If the handler cannot be installed, nothing changes.
pub fn survive_lost_files() {
    PREVIOUS.get_or_init(|| {
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: both structures are valid for the calls, and zero is a valid value of each of
        // their fields. The handler has the signature that SA_SIGINFO requires. SA_ONSTACK lets it
        // run on the stack that the standard library gives threads for their signals.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, previous.as_mut_ptr());
            previous.assume_init()
        }
    });
}

extern "C" fn on_bus_error(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes a valid `siginfo_t` to a SA_SIGINFO handler, and for SIGBUS it has
    // an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &SLOTS {
        let (end, start) = (slot.end.load(Ordering::Acquire), slot.start.load(Ordering::Relaxed));
        if start == 0 || address < start || address >= end {
            continue;
        }
        // SAFETY: the slot is complete and its map contains the address just accessed. The code
        // that accessed it borrows the map, so `WatchedMap` is alive, and with it the file.
        let file = unsafe { &*slot.file.load(Ordering::Relaxed) };
        file.mark_lost();
        if !replace_by_zeros(start, end - start) {
            end_process(file);
        }
        return;
    }
    // The fault is not in our maps. With the previous action restored, the instruction faults again
    // and that action handles it.
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: `sigaction` filled in the structure.
        unsafe { libc::sigaction(libc::SIGBUS, previous, ptr::null_mut()) };
    }
}

/// Replaces the map of `len` bytes at `start` by zero pages. Returns false if the system refuses.
fn replace_by_zeros(start: usize, len: usize) -> bool {
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
    // SAFETY: the range is a whole map of ours. It begins at a page, and the system rounds its end
    // up to a page, as it did when the file was mapped. It stays readable at every moment, and its
    // owner unmaps it like the file.
    let pages = unsafe { libc::mmap(start as *mut c_void, len, libc::PROT_READ, flags, -1, 0) };
    pages as usize == start
}

/// Names the file and ends the process, because the fault cannot be handled.
fn end_process(file: &MappedFile) -> ! {
    write_error(b"\nerror: ");
    write_error(file.path().as_os_str().as_bytes());
    write_error(b": the file was truncated, or its disk was removed, while the file was in use\n");
    // SAFETY: `_exit` may be called in a handler.
    unsafe { libc::_exit(EXIT_STATUS) }
}

fn write_error(text: &[u8]) {
    // SAFETY: the range is valid for reading, and `write` may be called in a handler. A failure
    // cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
