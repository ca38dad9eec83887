//! Handling of Ctrl-C. While an [`InterruptWatch`] exists, the first press sets its flag.
//! Otherwise, and on the second press, the program removes its unfinished files, withdraws the
//! sentinels of its GPU steps, which have not crashed, and ends with exit code 130.

use std::sync::atomic::{AtomicBool, Ordering};

use thermocline_engine::{files::remove_unfinished, gpu::withdraw_sentinels};

use crate::standard_error::say;

static WATCHED: AtomicBool = AtomicBool::new(false);
static PRESSED: AtomicBool = AtomicBool::new(false);

/// A watch for Ctrl-C. While it exists, Ctrl-C sets [`InterruptWatch::pressed`] instead of ending
/// the program.
#[derive(Debug)]
pub struct InterruptWatch(());

impl InterruptWatch {
    /// Starts watching.
    pub fn start() -> Self {
        PRESSED.store(false, Ordering::SeqCst);
        WATCHED.store(true, Ordering::SeqCst);
        InterruptWatch(())
    }

    /// `true` if Ctrl-C was pressed since the start.
    pub fn pressed(&self) -> bool {
        PRESSED.load(Ordering::SeqCst)
    }
}

impl Drop for InterruptWatch {
    fn drop(&mut self) {
        WATCHED.store(false, Ordering::SeqCst);
    }
}

/// Starts to handle Ctrl-C. The program calls this once, before any GPU step.
pub(crate) fn handle_ctrl_c() {
    let installed = ctrlc::set_handler(|| {
        if !WATCHED.load(Ordering::SeqCst) || PRESSED.swap(true, Ordering::SeqCst) {
            withdraw_sentinels();
            remove_unfinished();
            std::process::exit(130);
        }
    });
    // Without a handler Ctrl-C ends the program, which is acceptable.
    if let Err(error) = installed {
        say(format_args!("warning: Ctrl-C will end the program at once: {error}"));
    }
}
