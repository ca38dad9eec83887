//! Workarounds for the terminal's environment. Windows before 11 24H2 opens a console for a
//! terminal program that was not started in a terminal. (Later versions read in the program's
//! manifest that it needs no console.) Some drivers complain about a missing desktop.

#![allow(unsafe_code)]

#[cfg(windows)]
use windows_sys::Win32::System::Console::{FreeConsole, GetConsoleProcessList};

/// Detaches from the console if no other process is attached. The console was then opened for this
/// program alone, and closes. In a terminal the shell is attached too, and nothing changes.
#[cfg(windows)]
pub fn leave_if_alone() {
    let mut processes = [0; 2];
    // SAFETY: the length is that of the array, and the function does not keep its address.
    let count = unsafe { GetConsoleProcessList(processes.as_mut_ptr(), processes.len() as u32) };
    if count == 1 {
        // SAFETY: takes no pointers. It makes the standard handles invalid, and std drops writes to
        // them.
        unsafe { FreeConsole() };
    }
}

/// Disables a Mesa layer that asks the desktop which GPU shows the window. Without a desktop it
/// reports an invalid XDG_RUNTIME_DIR on standard error each time GPUs are listed. Must be called
/// before any thread starts.
pub fn expect_no_desktop() {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if cfg!(windows) || ["XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "DISPLAY"].into_iter().any(set) {
        return;
    }
    // SAFETY: called at the beginning of `main`, before any other thread could read the
    // environment.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}
