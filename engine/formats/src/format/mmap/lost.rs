//! Survival of the program when a file it has mapped is truncated, or the disk under it goes away.
//!
//! The next touch of a page that is gone raises SIGBUS, at an instruction somewhere in a kernel that cannot return an
//! error. The default is to end the process. [`survive_lost_files`] installs a handler that looks the address up among
//! our maps. If it is in one, the handler puts zero pages in place of the whole map, marks its [`MappedFile`] as lost,
//! and the instruction goes on. What was computed from zeros is never used: every pass ends with
//! [`MappedFile::check`]. A signal handler may do very little: it reads atomics and makes system calls, nothing else.

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

/// Maps that are watched at one time; more than a few split models have shards. Others are mapped all the same.
const MOST_WATCHED: usize = 4096;
/// Exit status for a bad file.
const EXIT_STATUS: c_int = 2;

/// One map, for the handler. It is taken while `start` is not 0, and complete while `end` is not 0.
struct MapSlot {
    start: AtomicUsize,
    end: AtomicUsize,
    file: AtomicPtr<MappedFile>,
}

static SLOTS: [MapSlot; MOST_WATCHED] =
    [const { MapSlot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), file: AtomicPtr::new(ptr::null_mut()) } };
        MOST_WATCHED];

/// A map and its file, known to the handler while this lives.
pub(super) struct WatchedMap {
    map: Mmap,
    slot: Option<&'static MapSlot>,
    /// Borrowed by the slot.
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

/// Signal handlers that were installed before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes the loss of a mapped file an [`Error::FileLost`](thermocline_base::error::Error::FileLost), instead of the end of the process.
/// For programs to call once when they start; a library has no business with the process's signals, so the engine
/// never does it by itself. Where the handler cannot be installed, it changes nothing.
pub fn survive_lost_files() {
    PREVIOUS.get_or_init(|| {
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: both structures are valid for the calls, zero is a valid value of each of their fields, and the
        // handler has the signature that SA_SIGINFO asks for. SA_ONSTACK lets it run on the stack that the standard
        // library gives threads for their signals.
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
    // SAFETY: the system passes a valid `siginfo_t` to a SA_SIGINFO handler, and for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &SLOTS {
        let (end, start) = (slot.end.load(Ordering::Acquire), slot.start.load(Ordering::Relaxed));
        if start == 0 || address < start || address >= end {
            continue;
        }
        // SAFETY: the slot is complete and its map holds the address just touched, so the code that touched it borrows
        // the map and `WatchedMap`, and with it the file, is alive.
        let file = unsafe { &*slot.file.load(Ordering::Relaxed) };
        file.mark_lost();
        if !replace_by_zeros(start, end - start) {
            end_process(file);
        }
        return;
    }
    // Not ours. With the previous action back in place the instruction faults again, and gets its answer.
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: the structure is one that `sigaction` filled in.
        unsafe { libc::sigaction(libc::SIGBUS, previous, ptr::null_mut()) };
    }
}

/// Puts zero pages in place of the map of `len` bytes at `start`. False if the system refuses.
fn replace_by_zeros(start: usize, len: usize) -> bool {
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
    // SAFETY: the range is a whole map of ours: it begins at a page, and the system rounds its end up to a page, as it
    // did when the file was mapped. It stays readable at every moment, and its owner unmaps it like the file.
    let pages = unsafe { libc::mmap(start as *mut c_void, len, libc::PROT_READ, flags, -1, 0) };
    pages as usize == start
}

/// Names the file and ends the process, for a fault that has no other end.
fn end_process(file: &MappedFile) -> ! {
    write_error(b"\nerror: ");
    write_error(file.path().as_os_str().as_bytes());
    write_error(b": the file was truncated, or its disk went away, while it was in use\n");
    // SAFETY: `_exit` may be called in a handler.
    unsafe { libc::_exit(EXIT_STATUS) }
}

fn write_error(text: &[u8]) {
    // SAFETY: the range is valid for reading; a failure leaves us no one to tell. `write` may be called in a handler.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
