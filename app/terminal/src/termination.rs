//! Handling of the signals that ask a program to end: SIGTERM, and SIGHUP when its terminal closes.
//! A program that ends by such a signal in the middle of a GPU step has not crashed, so it
//! withdraws the sentinel of the step. It also removes its unfinished files. While a
//! [`TerminationWatch`] exists, SIGTERM only sets a flag.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[cfg(unix)]
use signal_hook::{
    consts::{SIGHUP, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};
#[cfg(unix)]
use thermocline_engine::{files::remove_unfinished, gpu::withdraw_sentinels};

#[cfg(unix)]
use crate::standard_error::say;

static WATCHED: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// A watch for SIGTERM. While it exists, SIGTERM sets [`TerminationWatch::requested`] instead of
/// ending the program. On systems without signals the flag is never set.
#[derive(Debug)]
pub struct TerminationWatch(());

impl TerminationWatch {
    /// Starts watching.
    pub fn start() -> Self {
        REQUESTED.store(false, SeqCst);
        WATCHED.store(true, SeqCst);
        TerminationWatch(())
    }

    /// `true` if the program was asked to end since the start.
    pub fn requested(&self) -> bool {
        REQUESTED.load(SeqCst)
    }
}

impl Drop for TerminationWatch {
    fn drop(&mut self) {
        WATCHED.store(false, SeqCst);
    }
}

/// Starts to handle the signals. The program calls this once, before any GPU step.
pub(crate) fn handle_signals() {
    #[cfg(unix)]
    if let Err(error) = wait_for_signals() {
        // Without a handler the signals end the program, which is acceptable.
        say(format_args!("warning: SIGTERM will end the program at once: {error}"));
    }
}

/// Starts a thread that waits for the signals. The thread ends the program as the signal would
/// without a handler.
#[cfg(unix)]
fn wait_for_signals() -> std::io::Result<()> {
    let handled = [SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(handled)?;
    let wait = move || {
        for signal in signals.forever() {
            if signal == SIGTERM && WATCHED.load(SeqCst) {
                REQUESTED.store(true, SeqCst);
                continue;
            }
            withdraw_sentinels();
            remove_unfinished();
            let _ = emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("termination".to_owned()).spawn(wait).map(drop)
}

/// True if the program was started with `signal` ignored, as `nohup` does. Elsewhere than on Linux
/// this is not known, and SIGHUP counts as ignored because a handler would undo `nohup`.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.map_or(signal == SIGHUP, |mask| mask >> (signal - 1) & 1 == 1)
}
