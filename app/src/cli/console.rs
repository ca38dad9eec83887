//! The console that Windows before 11 24H2 opens beside a terminal program that was not started in a terminal. (Later ones
//! read in the program's manifest that it needs none.)

#![allow(unsafe_code)]

use windows_sys::Win32::System::Console::{FreeConsole, GetConsoleProcessList};

/// Detaches from the console, which closes it, if no other process is attached: it was then opened for this program alone. In a
/// terminal the shell is attached too, and nothing changes.
pub fn leave_if_alone() {
    let mut processes = [0; 2];
    // SAFETY: the length is that of the array, and its address is not kept.
    let count = unsafe { GetConsoleProcessList(processes.as_mut_ptr(), processes.len() as u32) };
    if count == 1 {
        // SAFETY: takes no pointers. Standard handles are not valid afterwards, and std drops what is written to those.
        unsafe { FreeConsole() };
    }
}
