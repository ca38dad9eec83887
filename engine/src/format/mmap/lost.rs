//! Survival of the program when a file it has mapped is truncated, or the disk under it goes away.
//!
//! The next touch of a page that is gone raises SIGBUS, at an instruction somewhere in a kernel that cannot return an
//! error. The default is to die with a core dump and no word. [`explain_lost_files`] installs a handler that looks the
//! address up among our maps and, if it is in one, names the file and exits with status 2, as for any bad file. A
//! signal handler may do very little: it reads atomics and calls `write` and `_exit`, nothing else.

#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    path::Path,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, AtomicUsize, Ordering},
    },
};

use memmap2::Mmap;

/// Maps that are watched at one time; more than a split model has shards. Others are mapped all the same.
const MOST_WATCHED: usize = 256;
/// Exit status for a bad file.
const EXIT_STATUS: c_int = 2;

/// One map, for the handler. It is taken while `start` is not 0, and complete while `end` is not 0.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    name: AtomicPtr<u8>,
    name_len: AtomicUsize,
}

static SLOTS: [Slot; MOST_WATCHED] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name: AtomicPtr::new(ptr::null_mut()),
        name_len: AtomicUsize::new(0),
    }
}; MOST_WATCHED];

/// A map and its file's name, known to the handler while this lives.
pub(super) struct Watched {
    map: Mmap,
    slot: Option<&'static Slot>,
    /// Borrowed by the slot.
    _name: Box<[u8]>,
}

impl Watched {
    pub(super) fn new(path: &Path, map: Mmap) -> Self {
        let name = path.as_os_str().as_encoded_bytes().to_vec().into_boxed_slice();
        let start = map.as_ptr() as usize;
        let slot = SLOTS
            .iter()
            .find(|slot| slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if let Some(slot) = slot {
            slot.name.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
            slot.name_len.store(name.len(), Ordering::Relaxed);
            slot.end.store(start.saturating_add(map.len()), Ordering::Release);
        }
        Watched { map, slot, _name: name }
    }
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.end.store(0, Ordering::Release);
            slot.start.store(0, Ordering::Release);
        }
    }
}

/// Signal handlers that were installed before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes the loss of a mapped file end the process with a message and status 2, instead of silently. For programs to
/// call once when they start; a library has no business with the process's signals, so the engine never does it by
/// itself. Without maps, or where the handler cannot be installed, it changes nothing.
pub fn explain_lost_files() {
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
        let end = slot.end.load(Ordering::Acquire);
        if address < slot.start.load(Ordering::Relaxed) || address >= end {
            continue;
        }
        let name = slot.name.load(Ordering::Relaxed);
        // SAFETY: the slot is complete and its map holds the address just touched, so the code that touched it borrows the
        // map and `Watched`, and with it the name, is alive. `write` and `_exit` may be called in a handler.
        unsafe {
            write_error(b"\nerror: ");
            write_error(std::slice::from_raw_parts(name, slot.name_len.load(Ordering::Relaxed)));
            write_error(b": the file was truncated, or its disk went away, while it was in use\n");
            libc::_exit(EXIT_STATUS);
        }
    }
    // Not ours. With the previous action back in place the instruction faults again, and gets its answer.
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: the structure is one that `sigaction` filled in.
        unsafe { libc::sigaction(libc::SIGBUS, previous, ptr::null_mut()) };
    }
}

fn write_error(text: &[u8]) {
    // SAFETY: the range is valid for reading; a failure leaves us no one to tell.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
