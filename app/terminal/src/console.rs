//! Surroundings of a terminal: the console that Windows before 11 24H2 opens beside a terminal program that was not started in a terminal
//! (later ones read in the program's manifest that it needs none), and drivers that complain of a missing desktop.

#![allow(unsafe_code)]

#[cfg(windows)]
use windows_sys::Win32::System::Console::{FreeConsole, GetConsoleProcessList};

/// Detaches from the console, which closes it, if no other process is attached: it was then opened for this program alone. In a
/// terminal the shell is attached too, and nothing changes.
#[cfg(windows)]
pub fn leave_if_alone() {
    let mut processes = [0; 2];
    // SAFETY: the length is that of the array, and its address is not kept.
    let count = unsafe { GetConsoleProcessList(processes.as_mut_ptr(), processes.len() as u32) };
    if count == 1 {
        // SAFETY: takes no pointers. Standard handles are not valid afterwards, and std drops what is written to those.
        unsafe { FreeConsole() };
    }
}

/// Keeps a layer of Mesa's away that asks the desktop which GPU is the window's: without a desktop it prints to standard error that
/// XDG_RUNTIME_DIR is invalid, each time GPUs are listed. To be called before there are threads.
pub fn expect_no_desktop() {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if cfg!(windows) || ["XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "DISPLAY"].into_iter().any(set) {
        return;
    }
    // SAFETY: called at the beginning of `main`, when no other thread can read the environment.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}
