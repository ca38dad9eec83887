//! The console that Windows before 11 24H2 opens beside a terminal program that was not started in a terminal. (Later ones
//! read in the program's manifest that it wants none.)

#![allow(unsafe_code)]

use windows_sys::Win32::System::Console::{FreeConsole, GetConsoleProcessList};

/// Gives the console back, which closes it, if nobody else is in it: it was then opened for this program alone. In a
/// terminal the shell is there too, and everything stays as it is.
pub fn leave_if_alone() {
    let mut processes = [0; 2];
    // SAFETY: the array is as long as is said, and nothing keeps its address.
    let count = unsafe { GetConsoleProcessList(processes.as_mut_ptr(), processes.len() as u32) };
    if count == 1 {
        // SAFETY: takes no pointers. Standard handles are not valid afterwards, and std drops what is written to those.
        unsafe { FreeConsole() };
    }
}
